"""What steps leave in a worker's memory: nothing that only the collector of cycles could take."""

import gc

from weft.core.model import Token
from weft.worker.execute import Execution


async def test_a_step_that_has_ended_is_gone_at_once(add, start_worker, eventually):
    worker = await start_worker()
    gc.collect()
    gc.disable()
    try:
        runs = await add.enqueue_many([(n, n) for n in range(20)])
        for run in runs:
            await run.result(10)
        await eventually(lambda: not worker.running)
        ids = {run.id for run in runs}
        alive = [one for one in gc.get_objects() if type(one) in (Execution, Token)]
        left = [one for one in alive if (one.token if isinstance(one, Execution) else one).run in ids]
    finally:
        gc.enable()
    # The last ones may still be in the hands of a commit that has just been answered.
    assert len(left) < 20
