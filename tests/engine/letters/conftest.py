"""What tests of dead letters share: tasks that fail, and a worker that lets them."""

from __future__ import annotations

import pytest

from weft import Discard, Fatal, Weft, current


@pytest.fixture
def charge(app: Weft):
    """Fails for odd accounts on their first run; a replay succeeds."""

    @app.task(queue="money", retries=1, retry_delay="1ms", tags={"team": "a"})
    async def charge(account: int, memo: str = "") -> str:
        info = await app.runs.get(current().run_id).info()
        if account % 2 and not info.replay_of:
            raise ValueError(f"account {account} is locked by 'ann'") from KeyError(account)
        return f"charged {account}{memo[:10]}"

    return charge


@pytest.fixture
def ship(app: Weft):
    @app.task
    async def ship(how: str) -> None:
        if how == "discard":
            raise Discard("not needed")
        raise Fatal("no address")

    return ship


@pytest.fixture
async def worker(start_worker):
    return await start_worker(queues=["money", "default"])


@pytest.fixture
def shaky(app: Weft):
    """Makes a task that fails unless it is a replay; options say which of its calls count as one."""

    def make(**options):
        @app.task(queue="money", **options)
        async def shaky(account: int) -> str:
            if not (await app.runs.get(current().run_id).info()).replay_of:
                raise ValueError("no")
            return f"charged {account}"

        return shaky

    return make
