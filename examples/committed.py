"""Starts that survive the loss of all of Redis: written to the database first, then started.

weft worker examples.committed:app      a worker, which also archives
python examples/committed.py            all of it in one process
"""

import asyncio

from weft import DurabilityUnmet, Weft

app = Weft("committed")


@app.task
async def charge(order: str, cents: int) -> str:
    """Charges an order."""
    return f"charged {cents} for {order}"


async def order(number: str, cents: int) -> str:
    """Starts one charge, and insists on it: the same key gives the same run, however often it is asked for."""
    bound = charge.options(durability="committed", idempotency_key=number)
    for attempt in range(5):
        try:
            run = await bound.enqueue(number, cents)
        except DurabilityUnmet as error:
            print(f"not yet: {error}")
            await asyncio.sleep(2**attempt)
        else:
            print(f"run {run.id} is kept as {(await run.info()).durability}")
            return await run.result(timeout=30)
    raise SystemExit("the database does not serve")


async def main() -> None:
    """Charges two orders, and the first of them again by mistake."""
    async with app, app.worker():
        print(await order("order-1", 500))
        print(await order("order-2", 700))
        print(await order("order-1", 500))


if __name__ == "__main__":
    asyncio.run(main())
