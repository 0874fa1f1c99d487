"""Every option of the command line has a twin in the environment; what is typed wins."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from weft.cli.commands import cli, variables
from weft.settings import SETTINGS


def options() -> list[tuple[str, Any]]:
    """Every option with the words of its command."""
    found: list[tuple[str, Any]] = []

    def walk(command: Any, path: str) -> None:
        found.extend((path, each) for each in command.params if each.param_type_name == "option")
        for name, each in getattr(command, "commands", {}).items():
            walk(each, f"{path} {name}".strip())

    walk(get_command(cli), "")
    return found


def test_every_option_has_a_twin_that_is_named_after_it():
    odd = []
    for path, option in options():
        spelled = max(option.opts, key=len).lstrip("-").replace("-", "_")
        if option.name != spelled and not option.envvar and option.name not in ("version",):
            odd.append((path, option.opts, option.name))
    assert odd == []
    assert len(options()) > 300


def test_no_twin_is_a_setting_of_another_meaning():
    short = {each.envvar for _, each in options() if isinstance(each.envvar, str)}
    assert variables() & (SETTINGS.keys() - short) == set()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """Reads what a command is asked, without running it."""

    def ask(words: list[str], **environ: str) -> dict[str, Any]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        command: Any = get_command(cli)
        context = command.make_context("weft", words.copy())
        while getattr(command, "commands", None):
            name, command, words = command.resolve_command(context, words)
            context = command.make_context(name, words.copy(), parent=context)
        return dict(context.params)

    return ask


def test_the_environment_speaks_where_nothing_is_typed(asked):
    assert asked(["runs", "ls"], WEFT_RUNS_LS_LIMIT="7")["limit"] == 7
    assert asked(["runs", "ls", "--limit", "3"], WEFT_RUNS_LS_LIMIT="7")["limit"] == 3
    assert asked(["worker"], WEFT_WORKER_PROCESSES="2")["processes"] == 2
    assert asked(["worker"], WEFT_PROCESSES="3", WEFT_WORKER_PROCESSES="2")["processes"] == 3
    assert asked(["runs", "retry", "r0-1"], WEFT_RUNS_RETRY_FROM="charge")["from_step"] == "charge"
    assert asked(["doctor"], WEFT_DOCTOR_JSON="1")["json"] is True
