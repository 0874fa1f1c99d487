"""The step of an HTTP node: what a worker runs when a graph makes a request."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from weft.errors import InvalidOption, WeftError
from weft.nodes.egress import Egress
from weft.nodes.http import RETRY_ON, request, steer
from weft.nodes.secrets import mark


class HttpStep:
    """Makes the requests of one worker, over one pool of connections that is opened at the first of them."""

    def __init__(self) -> None:
        self._egress: Egress | None = None

    async def __call__(self, fields: dict[str, Any], secrets: list[list[str | int]]) -> dict[str, Any]:
        """Makes one request. `secrets` are the places in it where the definition itself names a secret."""
        if self._egress is None:
            self._egress = Egress()
        asked: Any = {name: value for name, value in fields.items() if name != "retry_on"}
        for path in secrets:
            asked = _marked(asked, path)
        try:
            return await request(_with_bytes(asked), egress=self._egress)
        except WeftError as error:
            raise steer(error, fields.get("retry_on", RETRY_ON)) from error

    async def close(self) -> None:
        if self._egress is not None:
            await self._egress.aclose()


def _with_bytes(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns a request whose body, where it is given in Base64, is bytes: a definition is text."""
    body: Any = asked.get("body")
    if not isinstance(body, dict):
        return asked
    data: Any = body.get("base64")
    try:
        return {**asked, "body": b64decode(data, validate=True)}
    except (ValueError, TypeError):
        raise InvalidOption("body: what `base64` gives is no text in Base64", option="body") from None


def _marked(value: Any, path: list[str | int]) -> Any:
    if not path:
        return mark(value)
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: _marked(value[first], rest)}
    return [_marked(part, rest) if i == first else part for i, part in enumerate(value)]
