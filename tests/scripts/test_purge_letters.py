"""purge_letters deletes failed runs and nothing else; investigate_letter marks them."""

import pytest
from partition import completed, failed

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.errors import Conflict, NotFound
from weft.ids import new_run_id
from weft.store.blobs import digest_of, stage_blob
from weft.store.letters import investigate_letter, purge_letters
from weft.store.runs import NewRun, start_runs


async def dead(part) -> str:
    token = await part.claimed()
    await part.commit(failed(token))
    return token.run


async def test_a_dead_letter_goes_with_its_input(part, ns, p):
    spec, run = RunSpec("job", blob=digest_of(b"in")), new_run_id(p)
    await stage_blob(ns, p, run, b"in")
    await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")
    (token,) = await part.claim()
    await part.commit(failed(token))

    assert await purge_letters(ns, p, [(run, spec)]) == ["purged"]

    assert part.letters() == {}
    assert not part.raw.exists(part.keys.run(p, run), part.keys.blob(p, run, spec.blob))
    assert await purge_letters(ns, p, [(run, spec)]) == ["gone"]


@pytest.mark.leaves("open runs")
async def test_what_has_not_failed_stays(part, p, spec):
    (open_run,) = await part.start(queue="other")
    token = await part.claimed()
    await part.commit(completed(token))
    before = part.snapshot()
    assert await purge_letters(part.ns, p, [(open_run, spec()), (token.run, spec())]) == ["other", "other"]
    assert part.snapshot() == before


async def test_purging_refuses_other_epochs(part, refuses_other_epochs, spec):
    run = await dead(part)
    await refuses_other_epochs(lambda: purge_letters(part.ns, part.p, [(run, spec())]))


async def test_a_note_is_kept_with_its_author_and_taken_back(part, p):
    run = await dead(part)
    await investigate_letter(part.ns, p, run, by="ann", note="disk was full, see ticket 7")
    ms, by, note = part.run(run)["investigated"].split(" ", 2)
    assert (int(ms) > 0, by, note) == (True, "ann", "disk was full, see ticket 7")
    assert part.ttl(run) > 0

    await investigate_letter(part.ns, p, run, by="ann", note="")
    assert "investigated" not in part.run(run)


@pytest.mark.leaves("open runs")
async def test_only_dead_letters_can_be_marked(part, p):
    (run,) = await part.start()
    with pytest.raises(Conflict):
        await investigate_letter(part.ns, p, run, by="ann", note="x")
    with pytest.raises(NotFound):
        await investigate_letter(part.ns, p, f"r{p}-0000000000000000000000", by="ann", note="x")


async def test_marking_refuses_other_epochs(part, refuses_other_epochs):
    run = await dead(part)
    await refuses_other_epochs(lambda: investigate_letter(part.ns, part.p, run, by="ann", note="x"))
