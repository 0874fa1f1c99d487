"""The filters of `weft dlq`, said once: a command that takes `filters` has an option for each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from weft.cli.enqueue import read_moment, read_tag

#: The filters that were typed, as `app.dlq` takes them.
Filters = dict[str, Any]

OPTIONS: dict[str, Any] = {
    "task": Annotated[str | None, typer.Option(help="Of this task.")],
    "queue": Annotated[str | None, typer.Option(help="Of this queue.")],
    "error": Annotated[str | None, typer.Option(help="With this error: its class, such as ValueError, or its code.")],
    "fingerprint": Annotated[str | None, typer.Option(help="Of this group (see `weft dlq groups`).")],
    "since": Annotated[
        str | None, typer.Option(metavar="TIME", help="Failed since then: 2h ago as 2h, or an ISO time.")
    ],
    "until": Annotated[str | None, typer.Option(metavar="TIME", help="Failed until then, likewise.")],
    "tag": Annotated[str | None, typer.Option(metavar="K=V", help="With this tag.")],
    "investigated": Annotated[
        bool | None, typer.Option("--investigated/--uninvestigated", help="Only those marked as investigated, or not.")
    ],
    "replayed": Annotated[bool | None, typer.Option("--replayed/--unreplayed", help="Only those replayed, or not.")],
}


def filtered(*, without: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of all filters but one, in place of its parameter `filters`."""
    names = [name for name in OPTIONS if name != without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            typed = {name: given.pop(name) for name in names}
            command(filters=_read(typed), **given)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "filters":
                parameters += [parameter.replace(name=name, annotation=OPTIONS[name], default=None) for name in names]
            else:
                parameters.append(parameter)
        # What typer, and the page of the command line, read a command's options from.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _read(typed: dict[str, Any]) -> Filters:
    read: dict[str, Callable[[Any], Any]] = {
        "since": lambda text: read_past(text, "--since"),
        "until": lambda text: read_past(text, "--until"),
        "tag": read_tag,
    }
    return {name: read.get(name, lambda value: value)(value) for name, value in typed.items() if value is not None}


def read_past(text: str, option: str) -> str | datetime | None:
    """An ISO time becomes one; anything else is a length of time, and checked as such."""
    if "-" in text[1:]:
        return read_moment(text, option)
    from weft.clock import parse_duration_ms
    from weft.errors import InvalidOption

    try:
        parse_duration_ms(text, what=option)
    except InvalidOption as error:
        raise InvalidOption(
            f"{option}: {text[:60]!r} is neither how long ago, such as 2h or 7d, nor a time, such as 2026-11-16T09:00+01:00",
            option=option,
        ) from error
    return text
