"""The table of commands is cut down to what is typed; nobody who types can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from weft.cli.commands import cli, narrow


def commands_of(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*above, name), command
        if hasattr(command, "commands"):
            yield from commands_of(command, *above, name)


WHOLE = get_command(cli)
ALL = dict(commands_of(WHOLE))


def find(group: Any, words: tuple[str, ...]) -> Any:
    for word in words:
        group = group.commands[word]
    return group


def test_every_command_is_found_as_it_was_with_nothing_beside_it() -> None:
    assert len(ALL) > 80
    for words, command in ALL.items():
        small = get_command(narrow(cli, [*words, "--json"]))
        found = find(small, words)
        assert [param.opts for param in found.params] == [param.opts for param in command.params], words
        assert (found.name, found.help, found.callback is None) == (
            command.name,
            command.help,
            command.callback is None,
        )
        assert list(small.commands) == [words[0]], words  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["no-such-command"], ["work"]])
def test_help_and_mistakes_see_the_whole_table(words: list[str]) -> None:
    assert narrow(cli, words) is cli


@pytest.mark.parametrize("words", [["runs"], ["runs", "--help"], ["runs", "no-such-command"]])
def test_a_group_without_a_command_of_its_own_is_whole(words: list[str]) -> None:
    small = get_command(narrow(cli, words))
    assert list(find(small, ("runs",)).commands) == list(find(WHOLE, ("runs",)).commands)


def test_the_table_itself_stays_as_it_is() -> None:
    before = (list(cli.registered_commands), list(cli.registered_groups))
    narrow(cli, ["runs", "ls"])
    assert before == (cli.registered_commands, cli.registered_groups)
