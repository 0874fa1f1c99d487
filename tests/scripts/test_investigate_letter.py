"""investigate_letter: a note with its author on a dead letter, and on nothing else."""

import pytest
from partition import acts_of

from weft.errors import Conflict, NotFound
from weft.store.letters import investigate_letter


async def test_a_note_is_kept_with_its_author_and_taken_back(part, p):
    run = await part.dead()
    await investigate_letter(part.ns, p, run, by="ann", note="disk was full, see ticket 7")
    ms, by, note = part.run(run)["investigated"].split(" ", 2)
    assert (int(ms) > 0, by, note) == (True, "ann", "disk was full, see ticket 7")
    assert part.ttl(run) > 0

    await investigate_letter(part.ns, p, run, by="ann", note="")
    assert "investigated" not in part.run(run)


async def test_an_act_is_told_with_the_note_before_and_after(part, p):
    run = await part.dead()
    await investigate_letter(part.ns, p, run, by="ann", note="x", act=b"ACT")
    await investigate_letter(part.ns, p, run, by="ann", note="", act=b"ACT")
    first, second = acts_of(part)
    assert first.facts["before"] == second.facts["after"] == "0" and first.facts["after"] == second.facts["before"]


@pytest.mark.leaves("open runs")
async def test_only_dead_letters_can_be_marked(part, p):
    (run,) = await part.start()
    with pytest.raises(Conflict):
        await investigate_letter(part.ns, p, run, by="ann", note="x")
    with pytest.raises(NotFound):
        await investigate_letter(part.ns, p, f"r{p}-0000000000000000000000", by="ann", note="x")


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await part.dead()
    await refuses_other_epochs(lambda: investigate_letter(part.ns, part.p, run, by="ann", note="x"))
