"""Help, versions, exit codes: what needs no store, and must not load what a store needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_project import Project
from typer.testing import CliRunner

from weft import __version__, errors
from weft.cli import output
from weft.cli.commands import cli

COMMANDS = [
    *("dev", "worker", "run", "enqueue", "doctor", "runs ls", "runs show", "runs watch", "runs events", "runs cancel"),
    *("keys ls", "keys explain", "keys memory", "keys audit", "bench profile", "graph validate", "graph show"),
    *("server", "approvals link"),
]


def test_help_loads_neither_a_redis_client_nor_a_table_printer(tmp_path: Path) -> None:
    project = Project(tmp_path)
    code = (
        "import sys; sys.argv = ['weft', '--help']\n"
        "from weft.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'redis', 'rich', 'asyncio', 'msgspec', 'uvloop', 'logging', 'ssl', 'json', 'pydantic', 'fastapi'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=project.env, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for command in ("worker", "enqueue", "runs", "keys", "doctor", "dev", "bench"):
        assert f"\n  {command} " in done.stdout


def test_the_version_is_told_by_the_program(tmp_path: Path) -> None:
    assert Project(tmp_path).weft("--version").out == f"weft {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert shown.exit_code == 0 and f"Usage: weft {command}" in shown.stdout.replace("root", "weft", 1)


@pytest.mark.parametrize(
    "words",
    ["nonsense", "runs nonsense", "worker --archived", "dev --reload", "dev --demo", "worker -c 0", "enqueue"],
)
def test_what_is_unknown_or_not_built_is_refused_as_usage(words: str) -> None:
    assert CliRunner().invoke(cli, words.split()).exit_code == output.USAGE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StepFailed, 1),
        (errors.RunCancelled, 1),
        (errors.ScriptError, 1),
        (errors.InvalidArguments, 2),
        (errors.InvalidOption, 2),
        (errors.SettingsError, 2),
        (errors.NotBuilt, 2),
        (errors.PayloadTooLarge, 2),
        (errors.NotFound, 3),
        (errors.ResultExpired, 3),
        (errors.HistoryExpired, 3),
        (errors.Unavailable, 4),
        (errors.OutcomeUnknown, 4),
        (errors.StoreRefused, 4),
        (errors.Conflict, 5),
        (errors.SessionLost, 5),
    ],
)
def test_every_error_has_its_exit_code(error: type[errors.WeftError], code: int) -> None:
    assert output.exit_code(error("because")) == code


def test_an_error_of_ours_is_a_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.complain(ZeroDivisionError("oops")) == 1
    assert capsys.readouterr().err == "weft: ZeroDivisionError: oops (WEFT_LOG_LEVEL=debug shows where)\n"


def test_what_json_has_no_word_for_is_still_printed() -> None:
    assert output.to_json({1: b"hi", (2, 3): [{None: 1}]}) == '{"1":"aGk=","(2, 3)":[{"None":1}]}'
