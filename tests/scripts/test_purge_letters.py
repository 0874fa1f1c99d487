"""purge_letters: deletes failed runs and nothing else."""

import pytest
from partition import acts_of, completed, failed

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.ids import new_run_id
from weft.store.blobs import digest_of, stage_blob
from weft.store.letters import purge_letters
from weft.store.runs import NewRun, start_runs


async def test_a_dead_letter_goes_with_its_input(part, ns, p):
    spec, run = RunSpec("job", blob=digest_of(b"in")), new_run_id(p)
    await stage_blob(ns, p, run, b"in")
    await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")
    (token,) = await part.claim()
    await part.commit(failed(token))

    assert await purge_letters(ns, p, [(run, spec)], by="c-1") == ["purged"]

    assert part.letters() == {}
    assert not part.raw.exists(part.keys.run(p, run), part.keys.blob(p, run, spec.blob))
    assert await purge_letters(ns, p, [(run, spec)], by="c-1") == ["gone"]


async def test_acts_are_told_for_what_was_there_and_not_what_it_was(part, p, spec):
    run, gone = await part.dead(), new_run_id(p)
    assert await purge_letters(part.ns, p, [(gone, spec()), (run, spec())], acts=[b"A", b"B"]) == ["gone", "purged"]
    (event,) = acts_of(part)
    assert event.seq == 2 and event.payload == b"B"


@pytest.mark.leaves("open runs")
async def test_what_has_not_failed_stays(part, p, spec):
    (open_run,) = await part.start(queue="other")
    token = await part.claimed()
    await part.commit(completed(token))
    before = part.snapshot()
    assert await purge_letters(part.ns, p, [(open_run, spec()), (token.run, spec())], by="c-1") == ["other", "other"]
    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, refuses_other_epochs, spec):
    run = await part.dead()
    await refuses_other_epochs(lambda: purge_letters(part.ns, part.p, [(run, spec())], by="c-1"))
