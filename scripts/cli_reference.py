"""The page of the command line, read from the commands themselves.

Not a copy of what `--help` prints: its layout changes with versions of its libraries, the words of the commands do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from markdown import head, join, table


def render_cli() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from weft.cli.commands import EPILOG, cli

    root = get_command(cli)
    pages = list(_walk(root, "weft"))
    rows = [(f"[`{path}`](#{path.replace(' ', '-')})", _first(command)) for path, command in pages[1:]]
    return join(
        [
            head("Command line", "src/weft/cli/"),
            _text(root),
            EPILOG,
            table(("command", "what it does"), rows),
            *(_section(path, command) for path, command in pages[1:]),
        ]
    )


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not command.hidden:
        yield path, command
        for name, sub in getattr(command, "commands", {}).items():
            yield from _walk(sub, f"{path} {name}")


def _section(path: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    usage = " ".join([path, *(_usage(param) for param in arguments), *(["[OPTIONS]"] if options else [])])
    if getattr(command, "commands", None):
        usage += " COMMAND"
    parts = [f"## {path}", _text(command), f"```text\n{usage}\n```"]
    rows = [(f"`{_usage(param)}`", _help(param)) for param in arguments]
    rows += [(_option(param), _help(param)) for param in options]
    if rows:
        parts.append(table(("argument or option", "meaning"), rows))
    return join(parts).rstrip()


def _usage(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    if not param.required and not name.startswith("["):
        name = f"[{name}]"
    return name + ("…" if param.nargs == -1 and not name.endswith(("…", "...")) else "")


def _option(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    if param.is_flag:
        return names
    return f"{names} {param.metavar or param.type.name.upper()}"


def _help(param: Any) -> str:
    text = " ".join((getattr(param, "help", None) or "").split())
    if param.envvar:
        text += f" Environment: `{param.envvar}`."
    default = param.default() if callable(param.default) else param.default
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    return text.strip()


def _text(command: Any) -> str:
    return inspect.cleandoc(command.help or "").replace("\f", "").strip()


def _first(command: Any) -> str:
    return _text(command).split("\n\n", maxsplit=1)[0].replace("\n", " ")
