"""Writes `docs/reference/` from what the code declares: keys, scripts, errors, settings, command line.

python scripts/generate_docs.py           write the pages anew
python scripts/generate_docs.py --check   write nothing; exit 1 and show the difference when a page is stale
"""

# ruff: noqa: T201

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cli_reference import render_cli
from page_text import anchor, head, join, table

from weft.errors import BY_CODE, WeftError
from weft.settings import SETTINGS
from weft.store.keys import FAMILIES, GROUP, PRIORITIES, Family, Lifetime
from weft.store.scripts import LUA, KeyParam, Script, load_all

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"

#: Lines of a difference that `--check` shows per page.
SHOWN_LINES = 40

#: The Redis key references whose systems Weft replaces, by the numbers that `Family.replaces` uses.
SOURCES = {
    "000": "an orchestrator with token choreography: graphs, approvals, patches",
    "001": "status, observations, dead letters and a studio for services",
    "002": "durable code workflows",
    "003": "a research platform: sessions, agents, limits, caches, policies",
    "004": "scatter/gather pipelines over job queues",
}

#: Names of those references that operators may look for, and where they are now: (name, document, now, why).
MOVED: tuple[tuple[str, str, str, str], ...] = (
    ("`counter:{run}`", "000", "`run`, field `open`", "a counter can drift from what it counts; the ledger cannot"),
    ("`applied:{run}`", "000", "`run`, field `open`, and `idempotency`", "a closed ledger refuses a repeated commit"),
    ("`wf.tasks.{type}`", "000", "`wf.tasks`", "same name; a queue and a priority instead of a step type"),
    ("completion signals", "000", "the commit script", "the worker's own commit does what a coordinator did later"),
    ("run events (pub/sub)", "000", "`log`, and `inbox` as wake-up", "pub/sub forgets; a log can be read again"),
    (
        "`history:{task}`, `event:{task}:…`",
        "001",
        "`log`",
        "one source of events; numbered per run, so nothing doubles",
    ),
    ("`channel:{task}`", "001", "`inbox`", "one channel per listener instead of one per task"),
    ("`instances-{id}`", "002", "`run`", "one hash per run, fields instead of a JSON text"),
    ("`events-{id}`", "002", "`log`", "a stream per run costs kilobytes each; runs keep pointers into one"),
    ("pending instances (sorted set)", "002", "`wf.tasks` and its pending list", "blocking reads instead of polling"),
    ("future events (sorted set)", "002", "`timers`", "one due-index for everything that happens later"),
    ("`activities`, `activity-{id}`", "002", "`wf.tasks` and `run`", "a step is a token in a queue like any other"),
    ("worker heartbeats", "003", "`session` and `sessions`", "the lease belongs to the worker, not to each task"),
    ("task queues, results, live state", "003", "`wf.tasks` and `run`", "status, result and progress are one read"),
    ("`lock:*`", "003", "`lock`", "same name; today only for Weft's own services"),
    (
        "wait, active, completed, failed lists",
        "004",
        "`run`, field `status`",
        "a state is a fact of the run, not a list",
    ),
)


def render_keys() -> str:
    """Every key family, with what an operator needs to know during an incident."""
    rows = [
        (f"[`{family.name}`](#{anchor(family.name)})", family.type, family.lifetime.value, family.holds)
        for family in FAMILIES.values()
    ]
    parts = [
        head("Keys", "src/weft/store/keys.py"),
        "Every key Weft may hold. Nothing else is written, and `weft keys audit` checks a live server against this page.",
        "Form: `<namespace>:{<partition>}:<family>:<id>…`. The namespace is `WEFT_NAMESPACE`. The braces are the hash tag"
        " of Redis Cluster: all keys of a partition share one slot, so every script touches one slot only. A run id"
        " begins with its partition (`r3-…` lives in `{3}`).",
        table(("family", "type", "lifetime", "what it holds"), rows),
        "## Lifetimes",
        table(("lifetime", "what the audit demands"), [(f"**{life.value}**", DEMANDS[life]) for life in Lifetime]),
        "## Families",
        *(_family(family) for family in FAMILIES.values()),
        "## Names from the systems Weft replaces",
        "Weft takes the place of five systems whose key references it grew from:",
        "\n".join(f"- document {number}: {what}" for number, what in SOURCES.items()),
        "Where a family survives it keeps its name. Families of parts that are not built yet (guards, sessions of agents,"
        " studio) come with those parts.",
        table(("name there", "document", "here", "why"), MOVED),
    ]
    return join(parts)


#: What a lifetime means for a key that is found on a server.
DEMANDS = {
    Lifetime.FOREVER: "no expiry; there as long as the namespace is",
    Lifetime.WITH_RUN: "no expiry while the run is open; an expiry once it has finished",
    Lifetime.LEASE: "always an expiry, renewed by its owner",
    Lifetime.WINDOW: "always an expiry, set once",
    Lifetime.QUEUE: "no expiry; small, and there while its queue is used",
    Lifetime.MESSAGE: "nothing is stored: a pub/sub channel",
}


def _family(family: Family) -> str:
    example = ":".join(["weft", "{0}", family.name, *(EXAMPLES[part] for part in family.parts)])
    verb, _, rest = family.inspect.partition(" ")
    if verb in ("XINFO", "PUBSUB"):  # their second word belongs to the command
        word, _, rest = rest.partition(" ")
        verb = f"{verb} {word}"
    command = " ".join(filter(None, ["redis-cli", verb, f"'{example}'", rest]))
    facts = [
        f"- **Key**: `{family.template}`",
        f"- **Type**: {family.type}",
        f"- **Lifetime**: {family.lifetime.value} ({DEMANDS[family.lifetime]})",
        f"- **Owner**: `src/weft/{family.owner}.py`",
        f"- **Look**: `{command}`",
    ]
    if family.replaces:
        facts.append(f"- **Replaces**: {family.replaces}")
    parts = [f"### {family.name}", family.holds, "\n".join(facts)]
    if family.fields:
        parts.append(table(("field", "meaning"), [(f"`{name}`", text) for name, text in family.fields.items()]))
    return join(parts).rstrip()


#: What stands for each part of a key in the examples.
EXAMPLES = {
    "task": "9f86d081884c7d65",
    "node": "report.fetch",
    "run": "r0-01J9ZC5T0FQ8M2X7K4VNBW",
    "id": "r0-01J9ZC5T0FQ8M2X7K4VNBW/review",
    "queue": "default",
    "priority": "5",
    "digest": "<digest>",
    "step": "classify",
    "chunk": "0",
    "session": "s-01J9ZC5T0FQ8M2X7K4VNBW",
    "schedule": "nightly",
    "service": "sweeper",
    "gate": "key|send|bob",
    "owner": "c-01J9ZC5T0FQ8M2X7K4VNBW",
}


def render_scripts() -> str:
    """Every Lua script: its header is its signature."""
    scripts = load_all()
    rows = [
        (f"[`{name}`](#{anchor(name)})", script.summary, "yes" if "allow-oom" in script.flags else "")
        for name, script in scripts.items()
    ]
    return join(
        [
            head("Scripts", "the headers of src/weft/store/lua/*.lua"),
            "One script is one atomic operation. All keys it touches are declared, all of one partition, so it runs in one"
            " slot of a Cluster. A script that answers with an error code has changed no run; one that"
            " takes items answers for each of them."
            f" Queue streams have one consumer group, `{GROUP}`; priorities run from {PRIORITIES[0]} to {PRIORITIES[-1]}.",
            "*Runs when full*: the script also runs on a server that has reached `maxmemory`, so that workers can drain it.",
            table(("script", "what it does", "runs when full"), rows),
            *(_script(script) for script in scripts.values()),
        ]
    )


def _script(script: Script) -> str:
    parts = [f"## {script.name}", script.summary]
    keys = [(f"`{_key_text(key)}`", key.why) for key in script.keys]
    parts.append(table(("KEYS", "why"), keys))
    args = [(f"`{arg.name}`", arg.type, arg.why) for arg in script.args]
    if script.record:
        inside = ", ".join(f"{field.name}:{field.type}" for field in script.record.fields)
        args.append(
            (f"`{script.record.name}[]`", "records", f"each: {inside}. {_record_why(script)}".rstrip(" .") + ".")
        )
    if args:
        parts.append(table(("ARGV", "type", "why"), args))
    facts = [f"- **Returns**: {script.returns}"]
    if script.errors:
        facts.append("- **Errors**: " + ", ".join(f"[`{code}`](errors.md#{anchor(code)})" for code in script.errors))
    if script.flags:
        facts.append("- **Flags**: " + ", ".join(f"`{flag}`" for flag in script.flags))
    parts.append("\n".join(facts))
    return join(parts).rstrip()


def _key_text(key: KeyParam) -> str:
    return key.family + ("[]" if key.many else "")


def _record_why(script: Script) -> str:
    """What the header says of its records; the loader keeps their shape only."""
    for line in (LUA / f"{script.name}.lua").read_text().splitlines():
        if line.startswith("--- ARGV ") and "}[]" in line:
            return line.partition("}[]")[2].strip()
    return ""


def render_errors() -> str:
    """Every error class, by family, with its stable code."""
    rows = [
        (
            f"<a id='{anchor(cls.code)}'></a>`{cls.code}`",
            f"`{cls.__name__}`",
            _parent(cls),
            str(cls.http_status),
            "yes" if cls.retryable else "",
            first_line(cls),
        )
        for cls in BY_CODE.values()
    ]
    return join(
        [
            head("Errors", "src/weft/errors.py"),
            "Every error Weft raises is a `weft.WeftError` with a stable `code`, a message for people and `facts` for"
            " programs. The same codes stand in Lua replies, HTTP bodies and the command line's output.",
            "*Retryable*: trying the same call again later can help. Weft's own workers and clients do so by themselves.",
            table(("code", "class", "is a", "HTTP", "retryable", "meaning"), rows),
        ]
    )


def _parent(cls: type[WeftError]) -> str:
    parent = cls.__mro__[1]
    return f"`{parent.__name__}`" if parent is not Exception else "`Exception`"


def first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def render_settings() -> str:
    """Every environment variable."""
    rows = [
        (f"`{setting.name}`", f"`{setting.default}`" if setting.default else "none", setting.meaning)
        for setting in SETTINGS.values()
    ]
    return join(
        [
            head("Settings", "src/weft/settings.py"),
            "Settings are environment variables. An argument in code or on the command line wins over the environment.",
            table(("variable", "default", "meaning"), rows),
            "Lengths of time are written `250ms`, `5s`, `2m`, `1h`, `7d`, or as a number of seconds.",
            "`WEFT_SECRET_<NAME>` holds the secret that a request names, such as `WEFT_SECRET_API_TOKEN`; it wins over a file"
            " in `WEFT_SECRETS_DIR`.",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "keys.md": render_keys,
    "scripts.md": render_scripts,
    "errors.md": render_errors,
    "settings.md": render_settings,
    "cli.md": render_cli,
}


def main(arguments: Sequence[str]) -> int:
    """Writes or checks every page; returns the exit code."""
    stale = 0
    for name, render in PAGES.items():
        page, text = REFERENCE / name, render()
        written = page.read_text() if page.exists() else ""
        if written == text:
            continue
        stale += 1
        if "--check" in arguments:
            print(f"docs/reference/{name} is stale: run `make docs`")
            changes = difflib.unified_diff(
                written.splitlines(), text.splitlines(), "as written", "as declared", lineterm=""
            )
            print("\n".join(list(changes)[:SHOWN_LINES]))
        else:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
            print(f"wrote docs/reference/{name}")
    if not stale:
        print(f"all {len(PAGES)} reference pages are fresh")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
