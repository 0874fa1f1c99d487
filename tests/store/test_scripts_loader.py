"""The script loader: the header is the signature, and the loader executes it."""

import re
from pathlib import Path

import pytest

from weft.errors import BY_CODE, NotFound, ScriptError, SessionLost
from weft.store.keys import FAMILIES
from weft.store.scripts import LUA, _assemble, load, load_all

TESTS = Path(__file__).parents[1]
SCRIPTS = load_all()

HEADER = """#!lua flags=allow-oom
--- sample: Does something.
--- KEYS epoch the partition's epoch
--- KEYS run[] one per item
--- KEYS blob[] what they point at
--- ARGV by:str who
--- ARGV limit:int how many
--- ARGV item{kind:str after_ms:int}[] what to do
--- ERRS stale_epoch
--- RETURNS something
"""


def assemble(text: str, name: str = "sample"):
    return _assemble(name, text)


# --- what a header becomes ------------------------------------------------------------------------


def test_a_header_is_read_into_a_signature():
    script = assemble(HEADER + "return 1\n")

    assert script.summary == "Does something."
    assert [(key.family, key.many) for key in script.keys] == [("epoch", False), ("run", True), ("blob", True)]
    assert [(arg.name, arg.type) for arg in script.args] == [("by", "str"), ("limit", "int")]
    assert script.record is not None
    assert (script.record.name, [field.name for field in script.record.fields]) == ("item", ["kind", "after_ms"])
    assert (script.errors, script.returns, script.flags) == (("stale_epoch",), "something", ("allow-oom",))


def test_a_call_is_packed_in_the_order_of_the_header():
    script = assemble(HEADER + "return 1\n")

    packed = script.pack(
        {"blob": ["b1"], "run": ["r1", "r2"], "epoch": "e"},
        {"limit": 5, "by": "me"},
        [("completed", 1), ("failed", 2)],
    )

    # Key count, keys, counts of the repeated families, arguments, records.
    assert packed == [4, "e", "r1", "r2", "b1", 2, 1, "me", 5, "completed", 1, "failed", 2]


async def test_the_bindings_give_every_argument_its_name(ns, raw):
    body = """
    local out = {epoch_key, n_run_keys, KEYS[run_keys_at + 2], n_blob_keys, KEYS[blob_keys_at + 1], by, limit + 1, n_item}
    for i = 1, n_item do
      local kind, after_ms = item(i)
      out[#out + 1] = kind
      out[#out + 1] = after_ms * 10
    end
    return out
    """
    script = assemble(HEADER + body)
    packed = script.pack(
        {"epoch": "{t}e", "run": ["{t}r1", "{t}r2"], "blob": ["{t}b1"]}, {"by": "me", "limit": 5}, [("a", 1), ("b", 2)]
    )

    reply = raw.eval(script.source, *packed)

    assert reply == [b"{t}e", 2, b"{t}r2", 1, b"{t}b1", b"me", 6, 2, b"a", 10, b"b", 20]


async def test_what_records_share_is_sent_once_and_read_as_if_it_were_not(raw):
    text = "#!lua\n--- sample: X.\n--- KEYS epoch e\n--- ARGV by:str who\n"
    text += "--- ARGV item{kind:str ledger:str* after_ms:int value:str*}[] what to do\n"
    body = """
    local out = {n_item, by}
    for i = 1, n_item do
      local kind, ledger, after_ms, value = item(i)
      for _, each in ipairs{item_kind(i), kind, ledger, after_ms + 1, value} do out[#out + 1] = each end
    end
    return out
    """
    script = assemble(text + body)
    items = [("completed", "1:a", 5, b"x"), ("failed", "1:b", 5, b"y"), ("completed", "2:c", 5, b"x")]
    packed = script.pack({"epoch": "{t}e"}, {"by": "me"}, items)

    assert packed == [1, "{t}e", "me", 2, "completed", 5, "failed", 5, "1:a", b"x", 0, "1:b", b"y", 1, "2:c", b"x", 0]
    seen = raw.eval(script.source, *packed)
    assert seen[:2] == [3, b"me"]
    assert [seen[at : at + 5] for at in range(2, len(seen), 5)] == [
        [kind.encode(), kind.encode(), ledger.encode(), after_ms + 1, value] for kind, ledger, after_ms, value in items
    ]
    assert raw.eval(script.source, *script.pack({"epoch": "{t}e"}, {"by": "me"}, [])) == [0, b"me"]


async def test_a_field_in_which_records_differ_now_and_then_is_sent_with_each_only_then(raw):
    text = "#!lua\n--- sample: X.\n--- KEYS epoch e\n"
    text += "--- ARGV item{kind:str refs:str? ledger:str* n:int?}[] what to do\n"
    body = """
    local out = {n_item}
    for i = 1, n_item do
      local kind, refs, ledger, n = item(i)
      for _, each in ipairs{kind, refs, ledger, n + 1} do out[#out + 1] = each end
    end
    return out
    """
    script = assemble(text + body)

    def read(items):
        packed = script.pack({"epoch": "{t}e"}, {}, items)
        n, *seen = raw.eval(script.source, *packed)
        assert n == len(items)
        assert [seen[at : at + 4] for at in range(0, len(seen), 4)] == [
            [kind.encode(), refs.encode(), ledger.encode(), number + 1] for kind, refs, ledger, number in items
        ]
        return packed

    alike = read([("done", "", "1:a", 7), ("done", "", "1:b", 7)])
    assert alike == [1, "{t}e", 0, 1, "", 7, "done", "1:a", "1:b"]
    differing = read([("done", "c1", "1:a", 7), ("done", "c2", "1:b", 7), ("failed", "", "1:c", 8)])
    assert differing == [
        *(1, "{t}e", 1, 2, "", "", "done", "", "", "failed"),
        *("1:a", "c1", 7, 0, "1:b", "c2", 7, 0, "1:c", "", 8, 1),
    ]
    read([])


def test_names_with_a_dot_become_lua_names():
    script = assemble("#!lua\n--- sample: X.\n--- KEYS wf.tasks[] streams\nreturn n_wf_tasks_keys\n")

    assert "n_wf_tasks_keys" in script.source


# --- what is refused at import --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("return 1\n", r"sample\.lua:1: must begin with #!lua"),
        ("#!lua\n--- KEYS nonsense x\n", r"sample\.lua:2: unknown key family 'nonsense'"),
        ("#!lua\n--- KEYS nonsense[] x\n", "unknown key family 'nonsense'"),
        ("#!lua\n--- ERRS not_found no_such_code\n", r"unknown error codes \['no_such_code'\]"),
        ("#!lua\n--- ARGV by\n", "cannot read argument 'by'"),
        ("#!lua\n--- ARGV by:float x\n", "cannot read argument"),
        ("#!lua\n--- ARGV item{a:str}[] x\n--- ARGV by:str y\n", "cannot read argument"),
        ("#!lua\n--- WHATEVER x\n", "cannot read header line"),
        ("#!lua\n--- other: Name of another script.\n", "cannot read header line"),
        ("#!lua\n--- @include lib/nowhere\n", "no such include: lib/nowhere"),
        ("#!lua\n--- KEYS run[] many\n--- KEYS epoch one\n", "a single key stands after a repeated family"),
    ],
)
def test_a_header_that_says_something_unknown_is_refused_with_its_line(text, why):
    with pytest.raises(ScriptError, match=why):
        assemble(text)


# --- errors ---------------------------------------------------------------------------------------


def test_our_codes_become_their_classes_with_the_detail():
    script = load("end_run")

    error = script.translate("WEFT not_found there is no run r0-1")

    assert isinstance(error, NotFound)
    assert (error.message, error.facts["script"]) == ("there is no run r0-1", "end_run")
    assert str(script.translate("WEFT session_lost")) == SessionLost().message


@pytest.mark.parametrize(
    "spelling", ["user_script:{n}: oops", "ERR user_script: {n}: oops", "oops @user_script: {n}: -"]
)
def test_a_line_of_the_assembled_source_is_mapped_back_to_its_file(spelling):
    script = load("commit_steps")
    lines = script.source.splitlines()
    own = next(n for n, line in enumerate(lines, start=1) if line.startswith("local reply, passed"))
    shared = next(n for n, line in enumerate(lines, start=1) if "local function note(" in line)

    for number, file in ((own, "commit_steps.lua"), (shared, "lib/log.lua")):
        error = script.translate(spelling.format(n=number))
        assert isinstance(error, ScriptError)
        where, _, at = error.facts["where"].partition(":")
        assert where == file
        assert (LUA / where).read_text().splitlines()[int(at) - 1] == lines[number - 1]


def test_an_error_without_a_line_names_the_script():
    error = load("commit_steps").translate("OOPS something else")

    assert error.facts["where"] == "commit_steps.lua"


# --- the scripts there are ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_has_its_own_tests(name):
    file = TESTS / "scripts" / f"test_{name}.py"

    assert file.exists()
    assert len(re.findall(r"^async def test_", file.read_text(), re.MULTILINE)) >= 2


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_declared_error_is_brought_about_by_a_test(name):
    text = (TESTS / "scripts" / f"test_{name}.py").read_text()
    fenced = {"stale_epoch", "epoch_missing"}

    if fenced & set(SCRIPTS[name].errors):
        assert "refuses_other_epochs(" in text
    for code in set(SCRIPTS[name].errors) - fenced:
        assert BY_CODE[code].__name__ in text, f"no test of {name} mentions {BY_CODE[code].__name__}"


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_raises_only_what_it_declares(name):
    script = SCRIPTS[name]
    raised = set(re.findall(r"error_reply\('WEFT (\w+)", script.source))

    assert raised == set(script.errors)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_builds_no_key(name):
    """Every key comes in by KEYS: a built one is not declared, and on a moving slot its write would stay half done."""
    body = SCRIPTS[name].source
    commands = re.findall(r"\bp?call\('[A-Z]+'(?:, '[A-Z]+')?, ([^,)]+)", body)

    for first in commands:
        built = ".." in first
        assert not built or "inbox" in first, f"{name} builds {first!r}"


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_reads_time_in_one_place(name):
    if name != "open_partition":  # its seconds are an epoch, not a time
        assert SCRIPTS[name].source.count("'TIME'") <= 1
        assert "'TIME'" not in (LUA / f"{name}.lua").read_text()


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_the_server_takes_every_script(raw, name):
    # Lua allows 200 locals at once, and a large script with all that it includes is near that.
    assert raw.script_load(SCRIPTS[name].source) == SCRIPTS[name].sha


def test_only_what_brings_new_work_is_refused_by_a_full_server():
    refused = {name for name, script in SCRIPTS.items() if not {"allow-oom", "no-writes"} & set(script.flags)}

    starting = {
        "bring_back_graph",
        "start_run",
        "start_runs",
        "start_graph",
        "stage_items",
        "patch_graph",
        "retry_graph",
        "hedge_items",
        "fork_flow",
        "retry_flow",
    }
    # A signal may be kept for long, and takes room.
    assert refused == {
        *starting,
        "signal_run",
        "mail_run",
        "resolve_flow",
        "debounce_run",
        "reserve_replays",
        "tick_schedules",
        "publish_status",
        "adopt_status",
        "set_clock",
        "bring_back_graph",
    }


def test_every_family_that_is_a_key_is_used_by_a_script_or_a_reader():
    used = {key.family for script in SCRIPTS.values() for key in script.keys}

    assert set(FAMILIES) - used <= {"namespace", "inbox", "items", "secret"}
