"""The tasks of random graphs, and the same as the reference knows them."""

from __future__ import annotations

from typing import Any

from graphs.reference import Discarded, Failure
from weft import Discard, Weft, current


def declare(app: Weft) -> None:
    """Declares the tasks on an app."""

    @app.task
    async def act(gives: Any, fails: int = 0, discards: bool = False) -> Any:
        """Gives what it is given, after it has failed as often as asked; or says that it is not needed."""
        if discards:
            raise Discard("not needed")
        if current().attempt <= fails:
            raise ValueError(f"attempt {current().attempt} of {fails} fails")
        return gives


def act_model(arguments: dict[str, Any], attempt: int) -> Any:
    if arguments.get("discards"):
        raise Discarded
    fails = arguments.get("fails", 0)
    if attempt <= fails:
        raise Failure("ValueError", f"attempt {attempt} of {fails} fails")
    return arguments["gives"]


MODEL = {"act": act_model}
