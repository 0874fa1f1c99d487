"""Versions of graphs as people read them: what a reference names, and what differs between two. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from weft.errors import Conflict, InvalidOption, NotFound
from weft.ids import check_name

#: Characters of a digest that are enough to name a version.
SHORTEST = 8
#: What stands before a digest that is written out.
PREFIX = "sha256:"
#: Stands for a version that is not given: None means that there is none.
ANY: Any = object()

_DIGEST = re.compile(rf"[0-9a-f]{{{SHORTEST},64}}")


class Definition(msgspec.Struct, frozen=True):
    """A version of a graph."""

    name: str
    #: sha256 of what is stored with its runs.
    digest: str
    #: As its author calls it; empty: not at all.
    version: str
    tags: list[str]
    created_at: datetime
    #: The first run that followed it; empty: it was published without one.
    run_id: str
    actor: str
    #: The definition itself. Read by `get` only; None in listings.
    document: dict[str, Any] | None = None


class DefinitionTag(msgspec.Struct, frozen=True):
    """A tag of a graph, and the version that it names. `digest` is empty when the tag was taken away."""

    name: str
    tag: str
    digest: str
    version: str
    moved_at: datetime
    actor: str
    #: How many of its moves can be undone, and redone.
    undoable: int
    redoable: int


class Difference(msgspec.Struct, frozen=True):
    """What differs between two versions: nodes by name, and the operations (RFC 6902) that turn one into the other."""

    before: str
    after: str
    added: list[str]
    removed: list[str]
    changed: list[str]
    operations: list[dict[str, Any]]


class Patched(msgspec.Struct, frozen=True):
    """A patch of a run, as it was made."""

    run_id: str
    revision: int
    #: The revision that it took back; None: none.
    undoes: int | None
    at: datetime
    author: str
    reason: str
    #: Digests of the definition before and after it.
    before: str
    after: str
    operations: list[dict[str, Any]]
    #: The step whose code made it, `<run>/<step>`; empty: somebody outside.
    step: str = ""


class Named(msgspec.Struct, frozen=True):
    """What a reference is resolved by: a version's digest and label."""

    digest: str
    version: str


def check_tag(tag: str, versions: Sequence[Named]) -> str:
    """Returns the name of a tag; raises InvalidOption for one that could be taken for a version."""
    check_name(tag, what="tag")
    if _DIGEST.fullmatch(tag) or tag.startswith(PREFIX) or any(one.version == tag for one in versions):
        raise InvalidOption(f"tag: {tag!r} could be taken for a version or a digest: choose another name", option="tag")
    return tag


def resolve(name: str, ref: str, versions: Sequence[Named], tags: dict[str, str]) -> str:
    """Returns the digest of the version that a tag, a version or (a beginning of) a digest names.

    Raises NotFound, and Conflict when it names several.
    """
    if not isinstance(ref, str) or not ref:
        raise InvalidOption("a version is named by a tag, a version or a digest, as text", option="version")
    if tags.get(ref):
        return tags[ref]
    found = sorted({one.digest for one in versions if one.version == ref})
    begins = ref.removeprefix(PREFIX)
    if not found and _DIGEST.fullmatch(begins):
        found = sorted({one.digest for one in versions if one.digest.startswith(begins)})
    if len(found) > 1:
        short = ", ".join(digest[:12] for digest in found[:5])
        raise Conflict(
            f"{ref} names {len(found)} versions of graph {name}: name one by its digest: {short}", digests=found[:20]
        )
    if not found:
        raise NotFound(
            f"graph {name} has no tag, version or digest {ref[:100]!r}: `weft graph versions {name}` lists them",
            name=name,
        )
    return found[0]


def node_differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Returns the nodes that were added, removed and changed between two documents."""
    old, new = before["nodes"], after["nodes"]
    return (
        [id for id in new if id not in old],
        [id for id in old if id not in new],
        [id for id in new if id in old and old[id] != new[id]],
    )
