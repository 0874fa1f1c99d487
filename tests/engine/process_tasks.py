"""Tasks with pool="process": a fresh interpreter imports this module to run them."""

import os
import time
from collections.abc import Iterator

from weft import Context, Depends, Weft, current

#: What a heavy module does when a child imports it.
time.sleep(float(os.environ.get("SLOW_IMPORT", "0")))

app = Weft("processes")


@app.task(pool="process")
def where() -> list[int]:
    """Returns the process it runs in, and that one's parent."""
    return [os.getpid(), os.getppid()]


@app.task(pool="process")
def boom(text: str) -> None:
    try:
        int(text)
    except ValueError as error:
        raise LookupError("no such number") from error


@app.task(pool="process")
def report() -> str:
    """Reports in every way there is."""
    here = current()
    here.progress(0.25, "a quarter")
    here.heartbeat()
    here.progress(0.5)
    return f"{here.run_id} {here.attempt} {here.effect_key} {here.fence}"


@app.task(pool="process")
def beat() -> None:
    """Gives a sign of life, and lives on for long enough that it is sent."""
    current().heartbeat()
    time.sleep(0.2)


@app.task(pool="process", timeout="500ms")
def hang(path: str) -> None:
    """Hangs, leaving its process id behind."""
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


@app.task(pool="process", timeout="2s")
def work(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.workflow
async def works(ctx: Context, seconds: float) -> float:
    return await ctx.step(work, seconds)


@app.task(pool="process")
def die() -> None:
    os._exit(7)


@app.task(pool="process")
def echo(data: bytes) -> bytes:
    return data


def marked(path: str = os.environ.get("WEFT_TEST_MARKS", "")) -> Iterator[str]:
    """Notes in a file that it was opened, and closed."""
    with open(path, "a") as file:
        file.write("open\n")
    yield "resource"
    with open(path, "a") as file:
        file.write("close\n")


async def answer(of: str = Depends(marked)) -> list[str | int]:
    return [of, os.getpid()]


@app.task(pool="process")
def uses(found: list[str | int] = Depends(answer)) -> list[str | int]:
    return [*found, os.getpid()]


@app.task(pool="process")
def logs() -> None:
    current().log.info("from a child", pid=os.getpid())


@app.task(pool="process")
def linger(path: str) -> int:
    """Leaves its process id behind, and goes on until that file is gone."""
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    while os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()
