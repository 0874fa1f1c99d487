"""How far a long operation is: a bar on a terminal, a line now and then in a pipe. On stderr, never among the data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.cli import output

#: Seconds between two lines where there is no terminal: a log is not to be flooded.
LINE_SECONDS = 5.0

Tell = Callable[[int, int], None]


@contextmanager
def telling(what: str) -> Iterator[Tell]:
    """Yields what is told how many are done, and of how many; `what` follows the figures.

    Whoever stops it in the middle is told how far it came.
    """
    reached = ""

    def tell(done: int, total: int) -> None:
        nonlocal reached
        reached = f"{done} of {total} {what}"
        show(done, total)

    try:
        with _shown(what) as show:
            yield tell
    except BaseException:
        if reached:
            output.say(f"stopped: {reached}")
        raise


@contextmanager
def _shown(what: str) -> Iterator[Tell]:
    if not sys.stderr.isatty():
        yield _lines(what)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(what: str) -> Tell:
    said = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said
        if done >= total or time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            output.say(f"{done} of {total} {what}")

    return tell
