"""`app.definitions`: versions of graphs, as the archive has them; tags that name them, undo and redo, differences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from weft.codec import decode_plain
from weft.core.graph.schema import check_input
from weft.core.model import RunSpec
from weft.core.versions import ANY, Definition, DefinitionTag, Difference, Patched
from weft.engine import graphs, versions
from weft.engine.pauses import checked_reason
from weft.errors import InvalidArguments
from weft.sdk.graphrun import GraphRun, StartOptions, SyncGraphRun, start_spec

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Definitions:
    """Verbs on versions of graphs. A version is named by a tag, by what its author calls it, or by its digest."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncDefinitions:
        """The same verbs for code without a loop."""
        return SyncDefinitions(self._app)

    async def names(self) -> Sequence[str]:
        """The graphs that have versions."""
        return await versions.list_names(self._app.engine())

    async def versions(self, name: str, *, limit: int = 100) -> Sequence[Definition]:
        """The versions of a graph, the newest first: those that runs were started with, and those that were published."""
        return await versions.list_versions(self._app.engine(), name, limit=limit)

    async def get(self, name: str, version: str) -> Definition:
        """One version, with its document. Raises NotFound; Conflict when the name is not unique."""
        return await versions.get(self._app.engine(), name, version)

    async def publish(self, name: str, *, by: str = "", reason: str = "") -> Definition:
        """Makes a version of a graph of this app as it is now, without a run. One that is there stays as it is."""
        data, children = self._app.graphs[name].publish()
        digest = hashlib.sha256(data).hexdigest()
        stored = {**children, digest: data}
        reason = checked_reason(reason)
        return await versions.publish(self._app.engine(), name, digest, stored, by=by, reason=reason)

    async def tag(
        self, name: str, tag: str, version: str, *, expected: str | None = ANY, by: str = "", reason: str = ""
    ) -> DefinitionTag:
        """Lets a tag name a version. With `expected` only if it names that one now (None: only if it names none).

        Raises Conflict when somebody else has moved it meanwhile, with the digest that it names in its facts.
        """
        return await self._move(name, tag, "tag", to=version, expected=expected, by=by, reason=reason)

    async def untag(
        self, name: str, tag: str, *, expected: str | None = ANY, by: str = "", reason: str = ""
    ) -> DefinitionTag:
        """Takes a tag away; that can be undone. Raises NotFound."""
        return await self._move(name, tag, "untag", expected=expected, by=by, reason=reason)

    async def undo(
        self, name: str, tag: str, *, expected: str | None = ANY, by: str = "", reason: str = ""
    ) -> DefinitionTag:
        """Takes the last move of a tag back. Raises Conflict when there is none."""
        return await self._move(name, tag, "undo", expected=expected, by=by, reason=reason)

    async def redo(
        self, name: str, tag: str, *, expected: str | None = ANY, by: str = "", reason: str = ""
    ) -> DefinitionTag:
        """Makes a move again that was taken back. Raises Conflict when there is none, or the tag was moved since."""
        return await self._move(name, tag, "redo", expected=expected, by=by, reason=reason)

    async def tags(self, name: str) -> Sequence[DefinitionTag]:
        """The tags of a graph by name, those that were taken away too."""
        return await versions.list_tags(self._app.engine(), name)

    async def diff(self, name: str, before: str, after: str) -> Difference:
        """What differs between two versions of a graph."""
        return await versions.diff(self._app.engine(), name, before, after)

    async def start(self, name: str, version: str, input: Any = None, **options: Unpack[StartOptions]) -> GraphRun:
        """Starts a run of a version, which this app need not have. Takes the options of `graph.options(…)`."""
        spec = start_spec(RunSpec(name), options)
        data, bundle, children = await versions.whole(self._app.engine(), name, version)
        if wrong := check_input(bundle.graph.input, input):
            raise InvalidArguments(f"the input does not fit graph {name}: {'; '.join(wrong)}", problems=wrong)
        started = await graphs.start(self._app.engine(), data, spec, input, children)
        return GraphRun(self._app, started.id, decode_plain, deduplicated=started.deduplicated, accepted=True)

    async def patches(
        self,
        *,
        run: str | None = None,
        author: str | None = None,
        before: datetime | None = None,
        limit: int = 100,
    ) -> Sequence[Patched]:
        """Archived patches of runs, the newest first. `run.patches()` has those of one run at once."""
        return await versions.list_patches(self._app.engine(), run=run, author=author, before=before, limit=limit)

    async def _move(self, name: str, tag: str, verb: str, *, reason: str, **move: Any) -> DefinitionTag:
        return await versions.move(self._app.engine(), name, tag, verb, reason=checked_reason(reason), **move)


class SyncDefinitions:
    """`app.definitions.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def names(self) -> Sequence[str]:
        return self._app.portal.call(self._app.definitions.names())

    def versions(self, name: str, *, limit: int = 100) -> Sequence[Definition]:
        return self._app.portal.call(self._app.definitions.versions(name, limit=limit))

    def get(self, name: str, version: str) -> Definition:
        return self._app.portal.call(self._app.definitions.get(name, version))

    def publish(self, name: str, **options: Any) -> Definition:
        return self._app.portal.call(self._app.definitions.publish(name, **options))

    def tag(self, name: str, tag: str, version: str, **options: Any) -> DefinitionTag:
        return self._app.portal.call(self._app.definitions.tag(name, tag, version, **options))

    def untag(self, name: str, tag: str, **options: Any) -> DefinitionTag:
        return self._app.portal.call(self._app.definitions.untag(name, tag, **options))

    def undo(self, name: str, tag: str, **options: Any) -> DefinitionTag:
        return self._app.portal.call(self._app.definitions.undo(name, tag, **options))

    def redo(self, name: str, tag: str, **options: Any) -> DefinitionTag:
        return self._app.portal.call(self._app.definitions.redo(name, tag, **options))

    def tags(self, name: str) -> Sequence[DefinitionTag]:
        return self._app.portal.call(self._app.definitions.tags(name))

    def diff(self, name: str, before: str, after: str) -> Difference:
        return self._app.portal.call(self._app.definitions.diff(name, before, after))

    def start(self, name: str, version: str, input: Any = None, **options: Unpack[StartOptions]) -> SyncGraphRun:
        return self._app.portal.call(self._app.definitions.start(name, version, input, **options)).sync

    def patches(self, **filters: Any) -> Sequence[Patched]:
        return self._app.portal.call(self._app.definitions.patches(**filters))
