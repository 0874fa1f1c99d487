"""`weft worker`: one or more processes that serve queues."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.cli.serve import Heard
    from weft.engine.health import Store
    from weft.sdk.app import Weft
    from weft.worker.worker import Worker

Queues = Annotated[
    str | None,
    typer.Option("--queues", "-q", help="Queues to serve, comma-separated, the first one first.", envvar="WEFT_QUEUES"),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", min=1, help="Steps each process runs at once.", envvar="WEFT_CONCURRENCY"),
]
Grace = Annotated[
    str, typer.Option("--grace", help="How long running steps may go on after a signal.", envvar="WEFT_GRACE")
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error.", envvar="WEFT_LOG_LEVEL")
]


Archive = Annotated[
    bool | None,
    typer.Option("--archive/--no-archive", help="Archive, or leave it to others.", envvar="WEFT_ARCHIVE"),
]


def worker(
    target: targets.Target = None,
    queues: Queues = None,
    concurrency: Concurrency = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Worker processes to run.", envvar="WEFT_PROCESSES")
    ] = 1,
    grace: Grace = "30s",
    aging: Annotated[
        str | None,
        typer.Option("--aging", help="Waiting that counts as one priority more, such as 30s.", envvar="WEFT_AGING"),
    ] = None,
    archive: Archive = None,
    log_level: LogLevel = None,
    json: output.Json = False,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Run a worker for an app's tasks.

    SIGTERM or Ctrl-C stops it: it claims nothing more and lets running steps finish within the grace; a second one
    hands them back at once, without burning an attempt. With --json what it serves, and where, is printed as one document
    before it begins; after it stdout is what tasks print.
    """
    from weft.cli.serve import Heard

    options = Options(queues, concurrency, grace, log_level)
    if archive is not None:
        _set("WEFT_ARCHIVE", "yes" if archive else "no")
    if aging is not None:
        _age(aging)
    with Heard() as heard:
        app, place = targets.load_app(target, runs=True)
    if heard.asked:
        return
    try:
        if processes > 1:
            _run_fleet(app, place, options, processes, target, heard, json=json)
        else:
            _run_one(app, place, options, lifeline, heard, json=json)
    finally:
        app.release()


def _age(aging: str) -> None:
    """Checks the aging and sets it for this process and its children."""
    from weft.settings import read_setting

    read_setting("WEFT_AGING", environ={"WEFT_AGING": aging})
    _set("WEFT_AGING", aging)


def _set(name: str, value: str) -> None:
    import os

    os.environ[name] = value


class Options:
    """The options that `worker` and `dev` share, checked; sets up logging on the way."""

    def __init__(self, queues: str | None, concurrency: int | None, grace: str, log_level: str | None) -> None:
        from weft import telemetry
        from weft.clock import parse_duration_ms
        from weft.settings import SETTINGS, read_setting

        environ = {"WEFT_LOG_LEVEL": log_level or SETTINGS["WEFT_LOG_LEVEL"].default}
        telemetry.configure(read_setting("WEFT_LOG_LEVEL", environ=environ), aside=True)
        self.queues = read_setting("WEFT_QUEUES", environ={"WEFT_QUEUES": queues}) if queues else None
        self.concurrency = concurrency
        self.grace = parse_duration_ms(grace, what="--grace") / 1000
        #: The same options, for a child process.
        self.words = ["--grace", grace]
        for name, value in (("--queues", queues), ("--concurrency", concurrency), ("--log-level", log_level)):
            if value is not None:
                self.words += [name, str(value)]


def _run_one(
    app: Weft, place: targets.Place, options: Options, lifeline: int | None, heard: Heard, *, json: bool
) -> None:
    from weft.cli.serve import serve

    async def greet(worker: Worker) -> None:
        if lifeline is None:  # children of a fleet are spoken for by their parent
            _tell(app, place, await _read_store(app), worker, processes=1, json=json)

    serve(
        app,
        queues=options.queues,
        concurrency=options.concurrency,
        grace=options.grace,
        greet=greet,
        heard=heard,
        lifeline=lifeline,
    )


def _run_fleet(
    app: Weft,
    place: targets.Place,
    options: Options,
    processes: int,
    target: str | None,
    heard: Heard,
    *,
    json: bool,
) -> None:
    """Checks in the parent that app and store are there, so that what is wrong is said once, then starts children."""
    from weft.cli.fleet import Fleet

    async def look() -> bool:
        worker = app.worker(queues=options.queues, concurrency=options.concurrency)
        try:
            await worker.open()
            _tell(app, place, await _read_store(app), worker, processes=processes, json=json)
        finally:
            await app.close()
        return True

    # Each child is told that it is one: WEFT_PROCESSES, which it inherits, would make it a parent as well.
    words = [*([target] if target else []), "--processes", "1", *options.words]
    command = [sys.executable, "-m", "weft", "worker", *words]
    if not Fleet(command, processes, look=look, heard=heard).run():
        raise typer.Exit(1)


async def _read_store(app: Weft) -> Store:
    from weft.engine.health import read_store

    directory = str(app.embedded.directory) if app.embedded else None
    return await read_store(app.engine().ns, directory=directory)


def _tell(app: Weft, place: targets.Place, store: Store, worker: Worker, *, processes: int, json: bool) -> None:
    from weft.cli.banner import (
        describe,
        graph_facts,
        print_banner,
        store_facts,
        task_names,
        tell_unserved,
        workflow_facts,
    )

    print_banner(
        "worker",
        [
            ("app", f"{app.name} ({place.target}, by {place.source})"),
            ("tasks", ", ".join(task_names(app)) or "none"),
            *workflow_facts(app),
            *graph_facts(app, short=True),
            ("queues", ", ".join(worker.queues)),
            ("concurrency", f"{worker.concurrency}" + (f" x {processes} processes" if processes > 1 else "")),
            *store_facts(store),
            ("namespace", app.engine().ns.keys.namespace),
        ],
    )
    tell_unserved(app, worker.queues)
    if json:
        output.print_json(describe(app, place, store, worker, processes=processes))
