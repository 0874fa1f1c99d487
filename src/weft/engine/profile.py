"""What work costs the server: the difference of its own command statistics, per task."""

from __future__ import annotations

import re
import time

import msgspec

from weft.engine.engine import Engine
from weft.store import audit
from weft.store.connection import parse_info
from weft.store.scripts import load_all

#: Commands that run a script; the time of what the script calls is part of theirs.
SCRIPTS = ("evalsha", "eval")


class CommandCost(msgspec.Struct, frozen=True):
    """How often a command ran per task, and the microseconds the server spent on it."""

    command: str
    calls: float
    server_us: float


class Phase(msgspec.Struct, frozen=True):
    """What one phase cost per task. `inner_commands` are called by scripts, so their time is in `server_us` once."""

    script_calls: float
    plain_calls: float
    inner_commands: float
    server_us: float
    python_us: float
    tasks_per_second: float
    commands: list[CommandCost]


class Profile(msgspec.Struct, frozen=True):
    """What a task costs: to enqueue, while it waits, to execute."""

    n_tasks: int
    enqueue: Phase
    step: Phase
    bytes_per_queued_task: float


class Meter:
    """Measures one phase: `begin`, do the work, `end`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self) -> None:
        self._stats = await _read_stats(self._engine)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    async def end(self, n_tasks: int) -> Phase:
        """Returns the costs since `begin`, per task; the CPU time of this process counts as Python's."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        now = await _read_stats(self._engine)
        inner = _inner_commands()
        commands = []
        for command, (calls, usec) in now.items():
            before_calls, before_usec = self._stats.get(command, (0, 0))
            # Leave out the calls that the measuring itself makes.
            if calls > before_calls and not command.startswith(("info", "config", "memory")):
                commands.append(CommandCost(command, (calls - before_calls) / n_tasks, (usec - before_usec) / n_tasks))
        commands.sort(key=lambda cost: -cost.server_us)
        outer = [cost for cost in commands if cost.command not in inner]
        return Phase(
            script_calls=sum(cost.calls for cost in outer if cost.command in SCRIPTS),
            plain_calls=sum(cost.calls for cost in outer if cost.command not in SCRIPTS),
            inner_commands=sum(cost.calls for cost in commands if cost.command in inner),
            server_us=sum(cost.server_us for cost in outer),
            python_us=cpu / n_tasks * 1e6,
            tasks_per_second=n_tasks / wall,
            commands=commands,
        )


async def used_memory(engine: Engine) -> int:
    """Returns the bytes the server uses, over all nodes."""
    infos = [parse_info(await audit.ask(engine.ns, "INFO", "memory", node=n)) for n in await audit.nodes(engine.ns)]
    return sum(int(info["used_memory"]) for info in infos)


async def erase_namespace(engine: Engine) -> None:
    """Removes every key of a namespace. Only for one that was made to be thrown away."""
    async for page in audit.scan_keys(engine.ns):
        await engine.ns.read_many([("UNLINK", key) for key in page], p=0)


async def _read_stats(engine: Engine) -> dict[str, tuple[int, int]]:
    """Returns calls and microseconds of every command, over all nodes; subcommands as `xgroup|create`."""
    total: dict[str, tuple[int, int]] = {}
    for node in await audit.nodes(engine.ns):
        info = parse_info(await audit.ask(engine.ns, "INFO", "commandstats", node=node))
        for name, text in info.items():
            facts = dict(pair.split("=") for pair in text.split(","))
            calls, usec = total.get(name.removeprefix("cmdstat_"), (0, 0))
            total[name.removeprefix("cmdstat_")] = calls + int(facts["calls"]), usec + int(facts["usec"])
    return total


def _inner_commands() -> frozenset[str]:
    """Returns the commands that Weft's scripts call, as the statistics spell them."""
    sources = "\n".join(script.source for script in load_all().values())
    names = {name.lower() for name in re.findall(r"call\('([A-Z]+)'", sources)}
    pairs = {f"{a}|{b}".lower() for a, b in re.findall(r"call\('([A-Z]+)', '([A-Z]+)'", sources)}
    return frozenset(names | pairs)
