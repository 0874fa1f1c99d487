"""`app.status`: what others say about their work, once each, and in order."""

from __future__ import annotations

import asyncio

import pytest

from weft import Conflict, HistoryExpired, InvalidOption, NotFound, PayloadRefused, PayloadTooLarge, SettingsError


async def test_the_newest_is_how_a_task_stands_and_the_history_has_the_newest_first(app):
    await app.status.publish("job/7", "queued", source="ci")
    await app.status.publish("job/7", "running", {"step": 1})
    last = await app.status.publish("job/7", "done", {"artifacts": ["a", "b"]}, "e-3")

    found = await app.status.latest("job/7")
    assert found == last and (found.status, found.meta, found.event_id) == ("done", {"artifacts": ["a", "b"]}, "e-3")
    history = await app.status.history("job/7")
    assert [seen.status for seen in history] == ["done", "running", "queued"] and history[0] == last
    assert history[2].source == "ci" and history[0].at >= history[2].at
    older = await app.status.history("job/7", limit=1, before=history[0].id)
    assert [seen.status for seen in older] == ["running"]


async def test_any_text_names_a_task(app):
    for task in ("a:b:{c}", "späte Bestellung 🚚", "x" * 512, "r0-01J9ZC5T0FQ8M2X7K4VNBW"):
        await app.status.publish(task, "IN PROGRESS")
        assert (await app.status.latest(task)).task_id == task


async def test_what_is_known_already_is_told_and_changes_nothing(app):
    first = await app.status.publish("t", "running", {"n": 1}, "e-1")
    again = await app.status.publish("t", "running", {"n": 1}, "e-1")
    assert again.deduplicated and not first.deduplicated and (again.id, again.at) == (first.id, first.at)
    with pytest.raises(Conflict, match=r"event 'e-1' of task 't' was published before with another status"):
        await app.status.publish("t", "done", {"n": 1}, "e-1")
    assert (await app.status.publish("t", "running", {"n": 1})).deduplicated, "what was said last"
    assert len(await app.status.history("t")) == 1


async def test_of_many_that_publish_one_event_at_once_one_does(app):
    seen = await asyncio.gather(*(app.status.publish("t", "running", event_id="e") for _ in range(50)))
    assert sum(not each.deduplicated for each in seen) == 1 and len({each.id for each in seen}) == 1
    assert len(await app.status.history("t")) == 1


async def test_children_are_found_by_their_parent_in_the_order_they_came(app):
    for n in range(5):
        await app.status.publish(f"child {n}", "queued", parent_id="above")
    await app.status.publish("child 0", "done")

    found = await app.status.children("above")
    assert [(seen.task_id, seen.status) for seen in found] == [("child 0", "done")] + [
        (f"child {n}", "queued") for n in range(1, 5)
    ]
    assert {seen.parent_id for seen in found} == {"above"}
    assert len(await app.status.children("above", limit=2)) == 2 and await app.status.children("child 0") == []
    with pytest.raises(Conflict, match="belongs to 'above', not to 'other'"):
        await app.status.publish("child 0", "done", parent_id="other")
    assert await app.status.children("other") == [], "nothing was written"


async def test_the_feed_merges_all_tasks_and_goes_on_from_its_cursor(app):
    for n in range(7):
        await app.status.publish(f"t{n % 3}", f"s{n}")

    page = await app.status.feed(limit=5)
    rest = await app.status.feed(after=page.cursor)
    assert sorted(seen.status for seen in page.observations + rest.observations) == [f"s{n}" for n in range(7)]
    assert (len(page.observations), len(rest.observations)) == (5, 2)
    assert await app.status.feed(after=rest.cursor) == type(rest)([], rest.cursor)
    now = await app.status.feed(after="$")
    assert now.observations == []
    await app.status.publish("t0", "new")
    assert [seen.status for seen in (await app.status.feed(after=now.cursor)).observations] == ["new"]


async def test_a_reader_that_was_too_slow_for_the_feed_is_told(app, raw, monkeypatch):
    await app.status.publish("t", "first")
    cursor = (await app.status.feed()).cursor
    await app.status.publish("t", "second")
    await app.status.publish("t", "third")
    keys, p = app.engine().ns.keys, app.engine().home("t")
    assert [seen.status for seen in (await app.status.feed(after=cursor)).observations] == ["second", "third"]
    raw.xtrim(keys.status_feed(p), maxlen=1, approximate=False)

    with pytest.raises(HistoryExpired, match="nobody archives"):
        await app.status.feed(after=cursor)
    assert [seen.status for seen in (await app.status.feed()).observations] == ["third"]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("", "running"), r"task_id: '' is not a text of 1 to 512"),
        ((7, "running"), "task_id: a value of type int"),
        (("a\nb", "running"), "task_id: .* control characters"),
        (("x" * 513, "running"), "task_id: 513 characters"),
        (("t", ""), "status: ''"),
        (("t", "s" * 101), "status: 101 characters .* details go into meta"),
        (("t", "s", ["a"]), "meta: a dict with texts as keys is wanted, not list"),
        (("t", "s", {1: "a"}), "meta: a dict with texts"),
        (("t", "s", None, ""), "event_id: ''"),
        (("t", "s", None, "e\0"), "event_id: .* control characters"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(app, arguments, wrong):
    with pytest.raises(InvalidOption, match=wrong):
        await app.status.publish(*arguments)
    assert (await app.status.feed()).observations == []


async def test_values_that_cannot_be_kept_are_refused(app):
    with pytest.raises(PayloadRefused):
        await app.status.publish("t", "s", {"x": float("nan")})
    with pytest.raises(PayloadRefused):
        await app.status.publish("t", "s", {"x": object()})
    with pytest.raises(PayloadTooLarge):
        await app.status.publish("t", "s", {"x": "y" * 70_000})
    with pytest.raises(InvalidOption, match="its own parent"):
        await app.status.publish("t", "s", parent_id="t")
    with pytest.raises(InvalidOption, match="source"):
        await app.status.publish("t", "s", source="a\nb")
    with pytest.raises(NotFound, match="nothing was published about task 't'"):
        await app.status.latest("t")


async def test_reading_refuses_what_makes_no_sense(app):
    for limit in (0, 1001, True, "5"):
        with pytest.raises(InvalidOption, match="limit must be a whole number from 1 to 1000"):
            await app.status.history("t", limit=limit)
    for cursor in ("x", "1", "1-2-3", "-1-0", "", 5):
        with pytest.raises(InvalidOption, match="is no place"):
            await app.status.feed(after=cursor)
        with pytest.raises(InvalidOption, match="is no place"):
            await app.status.history("t", before=cursor)
    with pytest.raises(InvalidOption, match="it comes from another namespace"):
        await app.status.feed(after=".".join(["1-0"] * 99))
    assert await app.status.history("t") == []


async def test_lengths_and_times_are_settings(app, raw, monkeypatch):
    monkeypatch.setenv("WEFT_STATUS_HISTORY", "2")
    monkeypatch.setenv("WEFT_STATUS_KEEP", "1m")
    for n in range(4):
        await app.status.publish("t", f"s{n}", event_id=f"e{n}")
    assert [seen.status for seen in await app.status.history("t")] == ["s3", "s2"]
    (key,) = raw.scan_iter(f"{app.engine().ns.keys.namespace}:*:status_history:*")
    assert 0 < raw.pttl(key) <= 60_000
    monkeypatch.setenv("WEFT_STATUS_KEEP", "0s")
    with pytest.raises(SettingsError, match="WEFT_STATUS_KEEP"):
        await app.status.publish("t", "s")


def test_the_same_without_a_loop(weft_app):
    seen = weft_app.status.sync.publish("t", "done", {"a": 1}, "e", parent_id="above", source="me")
    assert weft_app.status.sync.latest("t") == seen and weft_app.status.sync.history("t") == [seen]
    assert weft_app.status.sync.children("above") == [seen]
    assert [each.id for each in weft_app.status.sync.feed().observations] == [seen.id]
    weft_app.portal.close()
