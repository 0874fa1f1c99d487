"""The step of an HTTP node: what a worker runs when a graph makes a request."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.nodes.egress import Egress
from weft.nodes.http import request, steer
from weft.nodes.secrets import mark


class HttpStep:
    """Makes the requests of one worker, over one pool of connections that is opened at the first of them."""

    def __init__(self) -> None:
        self._egress: Egress | None = None

    async def __call__(self, fields: dict[str, Any], secrets: list[list[str | int]]) -> dict[str, Any]:
        """Makes one request. `secrets` are the places in it where the definition itself names a secret."""
        if self._egress is None:
            self._egress = Egress()
        asked: Any = fields
        for path in secrets:
            asked = _marked(asked, path)
        try:
            return await request(asked, egress=self._egress)
        except WeftError as error:
            raise steer(error) from error

    async def close(self) -> None:
        if self._egress is not None:
            await self._egress.aclose()


def _marked(value: Any, path: list[str | int]) -> Any:
    if not path:
        return mark(value)
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: _marked(value[first], rest)}
    return [_marked(part, rest) if i == first else part for i, part in enumerate(value)]
