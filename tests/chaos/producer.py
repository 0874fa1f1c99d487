"""A producer process under test: starts runs and writes down, before and after each call, what it asked and was told.

    python -m chaos.producer LEDGER '{"seed": 1, "n": 100, "mix": {"effect": 5, …}, "rate": 0}'

Lines of the ledger are written by one unbuffered append each, so what a killed producer was told is not lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

import uvloop

from chaos.workload import app
from weft.errors import Unavailable, WeftError
from weft.telemetry import configure


class Ledger:
    """What was asked (`ask`), told (`ack`) and refused (`err`)."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")


def draw(rng: random.Random, mix: dict[str, float], i: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Returns one operation: task, arguments, options."""
    kind = rng.choices(list(mix), list(mix.values()))[0]
    n = i * 10 + rng.randrange(10)
    match kind:
        case "flaky":
            return "flaky", {"n": n, "fails": rng.randrange(1, 4)}, {}
        case "slow":
            return "slow", {"n": n, "ms": rng.randrange(50, 400)}, {}
        case "plain":
            return "plain", {"n": n, "ms": rng.randrange(0, 30)}, {}
        case "delayed":
            return "effect", {"n": n}, {"delay": f"{rng.randrange(100, 1500)}ms"}
        case "swallow":
            return "swallow", {"text": "x" * rng.randrange(5_000, 20_000)}, {}
        case "keyed":
            # Few keys, so that many starts meet one that is there; the arguments follow from the key.
            key = rng.randrange(8)
            return "effect", {"n": key}, {"idempotency_key": f"key-{key}"}
        case "urgent":
            return "effect", {"n": n}, {"priority": rng.randrange(1, 11)}
        case "many":
            return "many", {"n": n, "count": rng.randrange(2, 40)}, {}
        case _:
            return kind, {"n": n}, {}


async def ask(ledger: Ledger, i: int, op: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    name, args, options = op
    ledger.write(ask=i, task=name, args=args, options=options)
    try:
        if name == "many":
            items = [(args["n"] + j,) for j in range(args["count"])]
            runs = await app.tasks["effect"].enqueue_many(items)
            ledger.write(ack=i, runs=[run.id for run in runs])
        else:
            run = await app.tasks[name].options(**options).enqueue(**args)
            ledger.write(ack=i, runs=[run.id], key=options.get("idempotency_key", ""))
    except WeftError as error:
        ledger.write(err=i, code=error.code, message=str(error)[:200])


async def open_patiently() -> None:
    """Opens the store; a first contact that fails is told at once, so a producer born into a fault asks again."""
    while True:
        try:
            return await app.open()
        except Unavailable:
            await asyncio.sleep(0.1)


async def main(ledger: Ledger, plan: dict[str, Any]) -> None:
    rng = random.Random(plan["seed"])
    under_way: set[asyncio.Task[None]] = set()
    await open_patiently()
    async with app:
        ledger.write(open=os.getpid())
        for i, op in enumerate(plan["ops"] or (draw(rng, plan["mix"], i) for i in range(plan["n"]))):
            under_way.add(asyncio.create_task(ask(ledger, i, op)))
            if len(under_way) >= plan.get("parallel", 8):
                _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            if plan.get("rate"):
                await asyncio.sleep(1 / plan["rate"])
        if under_way:
            await asyncio.wait(under_way)
    ledger.write(done=True)


if __name__ == "__main__":
    configure(os.environ.get("WEFT_LOG_LEVEL", "info"))
    uvloop.run(main(Ledger(sys.argv[1]), json.loads(sys.argv[2])))
