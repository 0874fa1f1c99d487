"""Tasks that say what is to follow, in all three ways to run: on the loop, in a thread, in a process."""

import asyncio

from weft import Discard, Fatal, Retry, Snooze, Weft, current

app = Weft("steering")


def steer(how: str) -> list[int]:
    here = current()
    if here.delivery > 1:
        return [here.attempt, here.delivery]
    if how == "retry":
        raise Retry("the bank is closed", after="1h")
    if how == "back-off":
        raise Retry
    if how == "snooze":
        raise Snooze("1h", "until the bank opens")
    if how == "fatal":
        raise Fatal("no such account") from KeyError(17)
    if how == "cancelled":
        raise asyncio.CancelledError("from within")
    raise Discard("paid already")


@app.task(retries=1, retry_delay="2h", max_delay="3h", jitter=False)
async def on_loop(how: str) -> list[int]:
    return steer(how)


@app.task(retries=1, retry_delay="2h", max_delay="3h", jitter=False)
def in_thread(how: str) -> list[int]:
    return steer(how)


@app.task(pool="process", retries=1, retry_delay="2h", max_delay="3h", jitter=False)
def in_process(how: str) -> list[int]:
    return steer(how)


@app.task(retries=1)
def always(how: str) -> None:
    raise Retry("again", after="0s")


@app.task(retries=5, retry_on=())
def stubborn() -> list[int]:
    """Would never be retried by its options."""
    if current().attempt < 3:
        raise Retry(after=0)
    return [current().attempt]


@app.task(retries=5)
def nonsense() -> None:
    raise Snooze("-1s")


@app.task(retries=1, fatal_on=asyncio.CancelledError)
async def fatal_on_loop() -> None:
    raise asyncio.CancelledError("from within")


@app.task(retries=1, fatal_on=asyncio.CancelledError)
def fatal_in_thread() -> None:
    raise asyncio.CancelledError("from within")


@app.task(pool="process", retries=1, retry_on=ConnectionError)
def choosy_in_process() -> None:
    raise asyncio.CancelledError("from within")


@app.task(retries=1, retry_on=ConnectionError)
async def choosy_on_loop() -> None:
    raise asyncio.CancelledError("from within")
