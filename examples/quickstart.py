"""The smallest app: two tasks, and a program that runs them.

weft dev examples.quickstart:app        a store and a worker in one terminal
weft enqueue add a=2 b=3 --watch        a run, in another one
python examples/quickstart.py           all of it in one process
"""

import asyncio

from weft import Weft

app = Weft("quickstart")


@app.task
async def add(a: int, b: int) -> int:
    """Runs on the worker's event loop."""
    return a + b


@app.task
def greet(name: str) -> str:
    """Runs in a thread: it may block."""
    return f"Hello, {name}!"


async def main() -> None:
    """Enqueues two runs, serves them in this process, and prints what they gave."""
    async with app, app.worker():
        total = await add.enqueue(2, 3)
        greeting = await greet.enqueue("Ada")
        print(await total.result(timeout=10))
        print(await greeting.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
