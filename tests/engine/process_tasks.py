"""Tasks with pool="process": a fresh interpreter imports this module to run them."""

import os
import time

from weft import Weft, current

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


@app.task(pool="process")
def die() -> None:
    os._exit(7)


@app.task(pool="process")
def echo(data: bytes) -> bytes:
    return data
