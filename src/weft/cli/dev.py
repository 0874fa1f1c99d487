"""`weft dev`: everything in one terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.cli import output
from weft.cli import target as targets
from weft.cli.worker import Concurrency, Grace, LogLevel, Options, Queues

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.worker.worker import Worker


def dev(
    target: targets.Target = None,
    queues: Queues = None,
    concurrency: Concurrency = None,
    grace: Grace = "5s",
    log_level: LogLevel = None,
    json: output.Json = False,
) -> None:
    """Run a store and a worker in one terminal.

    The store is the embedded one, unless the app or WEFT_REDIS_URL names another; the worker serves all queues of the app.

    Ctrl-C lets running steps finish, then stops the worker and the store. What is queued is kept for the next time. With
    --json a document is printed as by `weft worker`.
    """
    from weft.cli.serve import Heard, serve

    options = Options(queues, concurrency, grace, log_level)
    with Heard() as heard:
        app, place = targets.load_app(target, runs=True)
    if heard.asked:
        return

    async def greet(worker: Worker) -> None:
        await _tell(app, place, worker, json=json)

    try:
        serve(
            app,
            queues=options.queues or _all_queues(app),
            concurrency=options.concurrency,
            grace=options.grace,
            greet=greet,
            heard=heard,
        )
    finally:
        app.release(stop=True)


def _all_queues(app: Weft) -> list[str]:
    from weft.cli.banner import queues_of

    return sorted({"default", *queues_of(app)})


async def _tell(app: Weft, place: targets.Place, worker: Worker, *, json: bool) -> None:
    from weft.cli import banner
    from weft.cli.banner import example_command, graph_facts, own_tasks, print_banner, store_facts, tell_unserved
    from weft.cli.worker import _read_store

    store = await _read_store(app)
    signatures = [app.tasks[name].signature.text for name in own_tasks(app)]
    print_banner(
        "dev",
        [
            *store_facts(store),
            ("namespace", app.engine().ns.keys.namespace),
            ("app", f"{app.name} ({place.target}, by {place.source})"),
            ("tasks", signatures or "none"),
            *banner.workflow_facts(app),
            *graph_facts(app),
            ("worker", f"queues {', '.join(worker.queues)}, concurrency {worker.concurrency}"),
        ],
    )
    tell_unserved(app, worker.queues)
    where = f" in {os.getcwd()}" if store.embedded else ""  # noqa: PTH109 - as the shell shows it
    output.say(f"\nTry, in another terminal{where}:\n  {example_command(app, place)}\n\nCtrl-C stops it all.\n")
    if json:
        output.print_json(banner.describe(app, place, store, worker, processes=1))
