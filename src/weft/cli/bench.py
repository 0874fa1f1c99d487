"""`weft bench`: what one step costs here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.engine.profile import Phase, Profile

group = typer.Typer(help="Measure what a step costs.", no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def _group() -> None:
    """Measure what a step costs."""


@group.command("profile")
def profile(
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=100, help="No-op tasks to run.")] = 20_000,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Steps at once.")] = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Run no-op tasks through a worker in this process and print the cost of one step.

    It uses the configured store in a namespace of its own, which is removed afterwards. The figures come from the
    server's INFO commandstats: whatever else uses the store meanwhile is counted too.
    """
    import asyncio

    from weft import telemetry
    from weft.cli.serve import loop_factory

    telemetry.configure("error")
    named = targets.load_app_or_bare(app)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            found = runner.run(_measure(named.url(), n_tasks=tasks, concurrency=concurrency))
    finally:
        named.release()
    if json:
        output.print_json(found)
    else:
        _print(found)


async def _measure(url: str, *, n_tasks: int, concurrency: int) -> Profile:
    """Enqueues no-op tasks, then lets a worker run them; both phases are metered apart."""
    import asyncio

    from weft.engine import profile as meters
    from weft.ids import new_id
    from weft.sdk.app import Weft

    app = Weft("profile", redis_url=url, namespace=f"weft-{new_id('profile')}")
    done = asyncio.Event()
    left = n_tasks

    @app.task
    async def noop() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    engine = app.engine()
    await app.open()
    meter = meters.Meter(engine)
    try:
        before = await meters.used_memory(engine)
        await meter.begin()
        await noop.enqueue_many([()] * n_tasks)
        enqueued = await meter.end(n_tasks)
        weight = (await meters.used_memory(engine) - before) / n_tasks
        await meter.begin()
        async with app.worker(concurrency=concurrency, archive=False):
            await done.wait()
        executed = await meter.end(n_tasks)
    finally:
        await meters.erase_namespace(engine)
        await app.close()
    return meters.Profile(n_tasks, enqueued, executed, round(weight, 1))


def _print(found: Profile) -> None:
    output.print_table(
        ["per task", "scripts", "other calls", "commands in scripts", "server us", "Python us", "tasks/s"],
        [_row("enqueue", found.enqueue), _row("step", found.step)],
    )
    print()
    output.print_table(
        ["command", "per step", "server us per step"],
        [(c.command, f"{c.calls:.3f}", f"{c.server_us:.2f}") for c in found.step.commands],
    )
    print()
    output.print_fields([("bytes per queued task", found.bytes_per_queued_task), ("tasks", found.n_tasks)])


def _row(name: str, phase: Phase) -> tuple[object, ...]:
    return (
        name,
        f"{phase.script_calls:.3f}",
        f"{phase.plain_calls:.3f}",
        f"{phase.inner_commands:.1f}",
        f"{phase.server_us:.1f}",
        f"{phase.python_us:.1f}",
        round(phase.tasks_per_second),
    )
