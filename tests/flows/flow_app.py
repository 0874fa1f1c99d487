"""An app whose workflows are killed: what they do outside is written to a file, one line per effect."""

from __future__ import annotations

import os
from pathlib import Path

from weft import Context, Weft, current

app = Weft("flows")

#: Where effects are written.
EFFECTS = "WEFT_TEST_EFFECTS"


def record(what: str) -> None:
    """Writes an effect down, at once and for good."""
    if path := os.environ.get(EFFECTS):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, f"{what} {current().effect_key} {os.getpid()}\n".encode())
        os.close(file)


def effects(path: Path) -> list[str]:
    """Returns the keys of all effects so far, in order."""
    return [line.split()[1].partition("/")[2] for line in path.read_text().splitlines()] if path.exists() else []


async def charge(order: str) -> str:
    record("charge")
    return f"paid {order}"


async def ship(parcel: str) -> str:
    record("ship")
    return f"shipped {parcel}"


@app.task(queue="packing", priority=8)
async def pack(order: str) -> str:
    record("pack")
    return f"packed {order}"


@app.workflow
async def order(ctx: Context, id: str) -> dict[str, object]:
    paid = await ctx.step(charge, id)
    await ctx.sleep("20ms")
    packed = await ctx.call(pack, id)
    address = await ctx.receive("address", type=str)
    again = await ctx.step(charge, "twice")
    shipped = await ctx.step(ship, f"{packed} to {address}")
    return {"paid": paid, "again": again, "shipped": shipped}


@app.workflow
async def below(ctx: Context, n: int) -> int:
    await ctx.sleep("10ms")
    return n + await ctx.receive("more", type=int)


@app.workflow
async def above(ctx: Context) -> list[int]:
    children = [ctx.child(below, n) for n in range(2)]
    for child in children:
        await child.signal("more", 10)
    return list(await ctx.gather(*children))


@app.workflow
async def undone(ctx: Context) -> None:
    await ctx.step(charge, "a")
    ctx.on_failure(ship, "back a")
    await ctx.step(charge, "b")
    ctx.on_failure(ship, "back b")
    try:
        await ctx.sleep("1h")
    finally:
        async with ctx.shield():
            await ctx.call(pack, "tidy")


@app.workflow
async def counting(ctx: Context, n: int, total: int = 0) -> list[object]:
    total += await ctx.step(add, n)
    ctx.set_state(total=total)
    await ctx.call(pack, str(n))
    if n:
        ctx.continue_as_new(n - 1, total)
    # It came in the first life, which had no use for it.
    return [total, await ctx.receive("early", type=str)]


async def add(n: int) -> int:
    record("add")
    return n


@app.workflow
async def renewing(ctx: Context, again: bool = True) -> int:
    if again:
        ctx.continue_as_new(False)
    return await ctx.step(add, 7)


@app.workflow
async def counting_above(ctx: Context) -> list[object]:
    child = ctx.child(counting, 1)
    await child.signal("early", "yes")
    return await child


@app.workflow
async def desk(ctx: Context) -> list[str]:
    """Answers updates until it has heard three."""
    heard: list[str] = []

    async def tell(what: str) -> int:
        await ctx.step(note, what)
        await ctx.sleep("10ms")
        heard.append(what)
        return len(heard)

    await ctx.step(charge, "opening")
    ctx.on_update("tell", tell)
    await ctx.receive("close")
    return heard


async def note(what: str) -> None:
    record("note")


@app.workflow
async def overdue(ctx: Context) -> None:
    await ctx.step(charge, "a")
    ctx.on_failure(ship, "back a")
    try:
        await ctx.receive("never")
    finally:
        async with ctx.shield():
            await ctx.call(pack, "tidy")
