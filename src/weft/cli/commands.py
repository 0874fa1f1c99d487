"""The table of commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command, get_command_name

from weft import __version__
from weft.cli import (
    approvals,
    archiver,
    audit,
    bench,
    cache,
    carrying,
    changing,
    dev,
    dlq,
    doctor,
    enqueue,
    keys,
    output,
    queues,
    retention,
    runs,
    schedules,
    server,
    start,
    status,
    top,
    versions,
    worker,
    workflows,
)

#: They add commands to the group of runs.
_OF_RUNS = (carrying, changing)

#: How the names of all variables begin.
PREFIX = "WEFT"
EPILOG = (
    "TARGET is module:app; without it WEFT_APP, then `app` in [tool.weft] of pyproject.toml. Exit codes: 0 ok,"
    " 1 failed, 2 usage, 3 not found, 4 unavailable, 5 conflict. What an option says may also stand in the environment: that of"
    " `weft runs ls --limit` in WEFT_RUNS_LS_LIMIT; the command line wins."
)

# Without markup typer needs no rich, which would double the time that help takes.
cli = typer.Typer(
    name="weft",
    help="Durable work in Python on Redis.",
    epilog=EPILOG,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Every option has a twin in the environment: that of `weft runs ls --limit` is WEFT_RUNS_LS_LIMIT.
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@cli.callback()
def weft(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            callback=_version,
            is_eager=True,
            allow_from_autoenv=False,
            show_envvar=False,
        ),
    ] = False,
) -> None:
    """Durable work in Python on Redis."""


cli.command()(dev.dev)
cli.command()(worker.worker)
cli.command()(server.server)
cli.command()(archiver.archiver)
cli.command()(archiver.migrate)
cli.command()(archiver.recover)
cli.command()(start.run)
cli.command()(enqueue.enqueue)
cli.add_typer(runs.group, name="runs")
cli.add_typer(versions.group, name="graph")
cli.add_typer(workflows.group, name="workflows")
cli.add_typer(approvals.group, name="approvals")
cli.add_typer(queues.group, name="queues")
cli.add_typer(queues.workers, name="workers")
cli.command()(queues.strike)
cli.command()(queues.unstrike)
cli.command()(top.top)
cli.add_typer(dlq.group, name="dlq")
cli.add_typer(schedules.group, name="schedules")
cli.add_typer(status.group, name="status")
cli.add_typer(audit.group, name="audit")
cli.add_typer(cache.group, name="cache")
cli.add_typer(retention.group, name="retention")
cli.add_typer(keys.group, name="keys")
cli.command()(doctor.doctor)
cli.add_typer(bench.group, name="bench")


def run() -> None:
    """Runs the command that was typed; whatever goes wrong ends as a line or two on stderr and an exit code."""
    try:
        narrow(cli, sys.argv[1:])(prog_name="weft")
    except Exception as error:  # noqa: BLE001 - the last frame there is: nobody is shown a traceback
        sys.exit(output.complain(error))


def variables() -> set[str]:
    """Returns the names under which options of all commands may stand in the environment."""
    return set(_variables(get_command(cli), PREFIX))


def _variables(command: Any, prefix: str) -> Iterator[str]:
    for option in command.params:
        if option.param_type_name == "option":
            yield from [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
            yield f"{prefix}_{option.name}".upper()
    for name, each in getattr(command, "commands", {}).items():
        yield from _variables(each, f"{prefix}_{name}".replace("-", "_"))


def narrow(table: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Returns a table of nothing but the command that is typed, or the whole when none is: for help and for mistakes.

    Typer reads the signature of every command in the table, which takes longer than most commands do.
    """
    if not words:
        return table
    small = copy.copy(table)
    small.registered_commands = [
        one
        for one in table.registered_commands
        if words[0] == (one.name or (one.callback and get_command_name(one.callback.__name__)))
    ]
    small.registered_groups = []
    for group in table.registered_groups:
        if words[0] == group.name and group.typer_instance is not None:
            info = copy.copy(group)
            info.typer_instance = narrow(group.typer_instance, words[1:])
            small.registered_groups.append(info)
    return small if small.registered_commands or small.registered_groups else table
