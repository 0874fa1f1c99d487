"""Versions of graphs: kept by their runs or published; tags move by compare-and-set, and their moves can be undone."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from weft import Conflict, InvalidOption, NotFound, Weft
from weft.errors import ForeignArchive, InvalidArguments


def declare(app: Weft, version: str, *, more: bool = False, name: str = "report") -> None:
    """Declares another version of a graph in place of the one before."""
    app.graphs.pop(name, None)
    graph = app.graph(name, version=version, input={"type": "object", "required": ["n"]})
    graph.transform("twice", "${input.n * 2}")
    if more:
        graph.transform("add", "${twice + 1}", after="twice")


async def test_runs_make_versions_and_tags_name_them(app, start_worker, archive, rows):
    await start_worker()
    declare(app, "1.0")
    first = await app.graphs["report"].start({"n": 1})
    again = await app.graphs["report"].start({"n": 2})
    declare(app, "1.1", more=True)
    second = await app.graphs["report"].start({"n": 3})
    assert [await run.result(20) for run in (first, again, second)] == [2, 4, 7]
    await archive()

    newest, oldest = await app.definitions.versions("report")
    assert (newest.version, newest.run_id, newest.tags) == ("1.1", second.id, [])
    # Which of two runs made it is not known across partitions: each is archived by itself.
    assert (oldest.version, oldest.tags) == ("1.0", []) and oldest.run_id in {first.id, again.id}
    assert len(await rows("definitions")) == 2 and await app.definitions.names() == ["report"]

    moved = await app.definitions.tag("report", "prod", "1.0", expected=None, by="ann", reason="the first one")
    assert (moved.digest, moved.version, moved.actor, moved.undoable) == (oldest.digest, "1.0", "ann", 1)
    assert (await app.definitions.get("report", "prod")).document["nodes"].keys() == {"twice"}
    assert (await app.definitions.get("report", newest.digest[:10])).version == "1.1"
    old = await app.definitions.start("report", "prod", {"n": 5}, tags={"by": "tag"})
    assert await old.result(20) == 10 and (await old.info()).tags == {"by": "tag"}
    with pytest.raises(InvalidArguments, match="n"):
        await app.definitions.start("report", "prod", {})
    with pytest.raises(InvalidOption):
        await app.definitions.start("report", "prod", {"n": 1}, nonsense=1)

    diff = await app.definitions.diff("report", "prod", "1.1")
    assert (diff.added, diff.removed, diff.changed) == (["add"], [], [])
    assert {operation["path"] for operation in diff.operations} == {"/nodes/add", "/version"}


async def test_a_tag_moves_only_from_where_it_was_expected_and_its_moves_can_be_undone(app, archive):
    digests = {}
    for version, more in (("1.0", False), ("1.1", True)):
        declare(app, version, more=more)
        digests[version] = (await app.definitions.publish("report", by="ci")).digest
    tag, undo, redo = app.definitions.tag, app.definitions.undo, app.definitions.redo
    await tag("report", "prod", "1.0", expected=None)
    with pytest.raises(Conflict, match=r"names 1\.0"):
        await tag("report", "prod", "1.1", expected=None)
    with pytest.raises(Conflict) as told:
        await tag("report", "prod", "1.1", expected="1.1")
    assert told.value.facts["digest"] == digests["1.0"]
    assert (await tag("report", "prod", "1.1", expected="1.0")).version == "1.1"
    assert (await tag("report", "prod", "1.1")).undoable == 2, "a move to where it is, is none"

    # Two at once: one of them is told.
    both = await asyncio.gather(
        *(tag("report", "prod", "1.0", expected="1.1", by=who) for who in ("ann", "bob")), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in both) == ["Conflict", "DefinitionTag"]

    assert [(await undo("report", "prod")).version for _ in range(3)] == ["1.1", "1.0", ""]
    with pytest.raises(Conflict, match="nothing to undo"):
        await undo("report", "prod")
    assert [(await redo("report", "prod")).version for _ in range(2)] == ["1.0", "1.1"]
    assert (await app.definitions.untag("report", "prod", expected="1.1")).digest == ""
    with pytest.raises(NotFound):
        await app.definitions.untag("report", "prod")
    with pytest.raises(NotFound):
        await app.definitions.get("report", "prod")
    with pytest.raises(Conflict, match="nothing to redo"):
        await redo("report", "prod")
    assert (await undo("report", "prod", expected=None)).version == "1.1"

    acts = (await app.audit.list(object="report@prod")).entries[::-1]
    verbs = "tag tag tag undo undo undo redo redo untag undo".split()
    assert [entry.action for entry in acts] == [f"definition.{verb}" for verb in verbs]
    assert all(later.before == earlier.after for earlier, later in itertools.pairwise(acts))
    assert (await app.audit.verify()).ok


async def test_what_a_version_is_not_called_is_refused(app):
    declare(app, "1.0")
    made = await app.definitions.publish("report")
    same = await app.definitions.publish("report")
    assert made == same and len((await app.audit.list(action="definition.publish")).entries) == 1
    declare(app, "1.0", more=True)
    await app.definitions.publish("report")

    with pytest.raises(Conflict, match="names 2 versions"):
        await app.definitions.get("report", "1.0")
    for tag in ("1.0", made.digest[:12], "sha256:ab", "a b", ""):
        with pytest.raises(InvalidOption):
            await app.definitions.tag("report", tag, made.digest)
    for name, ref in (("report", "2.0"), ("other", "1.0"), ("report", "0" * 64)):
        with pytest.raises(NotFound):
            await app.definitions.get(name, ref)
    with pytest.raises(NotFound, match="no graph"):
        await app.definitions.publish("other")
    with pytest.raises(InvalidOption):
        await app.definitions.versions("report", limit=0)
    assert await app.definitions.tags("report") == []


async def test_a_version_with_subgraphs_starts_where_no_app_has_them(app, start_worker, archive):
    await start_worker()
    declare(app, "1.0", name="inner")
    outer = app.graph("outer")
    outer.subgraph("inside", graph="inner", with_={"n": "${input.n}"})
    await app.definitions.publish("outer")
    del app.graphs["inner"], app.graphs["outer"]

    (only,) = await app.definitions.versions("outer")
    run = await app.definitions.start("outer", only.digest, {"n": 4})
    assert await run.result(20) == 8
    await archive()
    assert [one.version for one in await app.definitions.versions("inner")] == ["1.0"]


async def test_tags_are_moved_in_the_database_of_the_namespace_alone(app, archive, database):
    declare(app, "1.0")
    await app.definitions.publish("report")
    await archive()
    async with database.writing() as connection:
        await connection.exec_driver_sql("UPDATE weft_facts SET value = 'another' WHERE name = 'database'")

    with pytest.raises(ForeignArchive, match="WEFT_DATABASE_URL"):
        await app.definitions.tag("report", "prod", "1.0")


async def test_patches_are_kept_with_who_and_why(app, start_worker, archive, forget, rows):
    await start_worker()
    graph = app.graph("steps")
    graph.wait("go", signal="go")
    graph.transform("last", "${1}", after="go")
    run = await graph.start()
    add = {"op": "add", "path": "/nodes/more", "value": {"type": "transform", "value": 5, "after": ["go"]}}
    await run.patch([add], author="ann", reason="one more")
    await run.undo_patch(author="bob")
    hot = await run.patches()
    await run.signal("go")
    await run.result(20)
    await archive()
    forget(run)

    cold = await run.patches()
    assert cold == hot and list(await app.definitions.patches(run=run.id)) == cold[::-1]
    assert [(one.revision, one.author, one.reason, one.undoes) for one in cold] == [
        (2, "ann", "one more", None),
        (3, "bob", "", 2),
    ]
    assert cold[0].operations == [add] and cold[0].before == cold[1].after and cold[0].after == cold[1].before
    assert [one.run_id for one in await app.definitions.patches(author="bob")] == [run.id]
    acts = [
        (one.actor, one.action, one.after) for one in (await app.audit.list(run=run.id, action="run.patch")).entries
    ]
    assert acts == [("bob", "run.patch", cold[1].after), ("ann", "run.patch", cold[0].after)]
    assert len(await rows("patches")) == 2
