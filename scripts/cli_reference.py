"""The page of the command line, read from the commands' own signatures.

Not a copy of what `--help` prints: that layout changes with versions of its libraries, the words of the commands do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from page_text import head, join, table
from typer import Typer
from typer.models import ArgumentInfo, OptionInfo

from weft.cli.commands import EPILOG, cli


def render_cli() -> str:
    """Every command with its arguments and options."""
    found = list(walk(cli, "weft"))
    rows = [(f"[`{path}`](#{path.replace(' ', '-')})", words(command).split("\n\n")[0]) for path, command in found]
    return join(
        [
            head("Command line", "src/weft/cli/"),
            "Data goes to stdout, talk to stderr. Lists are tables on a terminal, tab-separated lines in a pipe, JSON Lines"
            " with `--json`. A table too wide for its terminal does without spare columns; a pipe and `--json` have all."
            " `weft COMMAND --help` says what stands here.",
            EPILOG,
            table(("command", "what it does"), rows),
            *(section(path, command) for path, command in found),
        ]
    )


def walk(group: Typer, path: str) -> Iterator[tuple[str, Any]]:
    """Yields every command's path and function, groups after plain commands, as help lists them."""
    for command in group.registered_commands:
        assert command.callback is not None
        if not command.hidden:
            yield f"{path} {command.name or command.callback.__name__.replace('_', '-')}", command.callback
    for sub in group.registered_groups:
        assert sub.typer_instance is not None
        yield from walk(sub.typer_instance, f"{path} {sub.name}")


def section(path: str, command: Any) -> str:
    """One command: its words, its usage, its arguments and options."""
    usage, rows = [path], []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        about = next((a for a in get_args(hints[name])[1:] if isinstance(a, ArgumentInfo | OptionInfo)), None)
        assert about is not None, f"{path}: {name} has neither typer.Argument nor typer.Option"
        if about.hidden:
            continue
        optional = parameter.default is not parameter.empty
        if isinstance(about, ArgumentInfo):
            shown = about.metavar or name.upper()
            shown = f"[{shown}]" if optional and not shown.startswith("[") else shown
            shown += "…" if "list[" in str(hints[name]) else ""
            usage.append(shown)
            rows.append((f"`{shown}`", meaning(about, parameter.default)))
        else:
            rows.append((option(name, about, hints[name]), meaning(about, parameter.default)))
    usage += ["[OPTIONS]"] if any(row[0].startswith("`-") for row in rows) else []
    parts = [f"## {path}", words(command), f"```text\n{' '.join(usage)}\n```"]
    if rows:
        parts.append(table(("argument or option", "meaning"), rows))
    return join(parts).rstrip()


def option(name: str, about: OptionInfo, hint: Any) -> str:
    # In an Annotated the first name stands where a default would.
    declared = [about.default] if isinstance(about.default, str) else []
    declared += about.param_decls or ([] if declared else [f"--{name.replace('_', '-')}"])
    names = ", ".join(f"`{text}`" for text in declared)
    kind = str(get_args(hint)[0])
    if "bool" in kind:
        return names
    return f"{names} {about.metavar or ('N' if 'int' in kind else 'TEXT')}"


def meaning(about: ArgumentInfo | OptionInfo, default: Any) -> str:
    text = " ".join((about.help or "").split())
    if about.envvar:
        text += f" Environment: `{about.envvar}`."
    if isinstance(default, str | int) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    return text.strip()


def words(command: Any) -> str:
    """A command's docstring, a line per paragraph."""
    text = inspect.cleandoc(command.__doc__ or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
