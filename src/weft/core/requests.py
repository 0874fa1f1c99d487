"""What a step that makes an HTTP request is asked: which fields are filled in, and where secrets stand. Pure."""

from __future__ import annotations

from typing import Any

from weft.core.graph.compile import NodePlan

#: Fields of an HTTP node that are the same for every request.
_PLAIN = ("expect", "retry_on", "max_bytes", "redirects")
#: Fields of an HTTP node that its step is given.
HTTP_FIELDS = ("url", "method", "headers", "query", "json", "form", "body", "idempotency_key", *_PLAIN)


def secrets_in(node: NodePlan) -> list[list[str | int]]:
    """Returns where a definition names secrets. What a template or an input brings in later is data, and no secret."""
    found: list[list[str | int]] = []
    line: list[tuple[list[str | int], Any]] = [([name], getattr(node.spec, name)) for name in HTTP_FIELDS]
    while line:
        path, value = line.pop()
        if isinstance(value, dict):
            if "secret" in value and value.keys() <= {"secret", "prefix"}:
                found.append(path)
            else:
                line.extend(([*path, key], part) for key, part in value.items())
        elif isinstance(value, list):
            line.extend(([*path, i], part) for i, part in enumerate(value))
    return found
