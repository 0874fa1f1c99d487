"""How commits of one lane follow each other: the next one gathers while one is under way, unless it is full."""

import asyncio

import pytest

from weft.core.model import Outcome, RunSpec, Token
from weft.worker import commit
from weft.worker.commit import COMMIT_BATCH, Committer


class Server:
    """Takes commits and answers none before it is told to."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._answers: list[asyncio.Future[None]] = []

    async def commit_steps(self, ns, p, outcomes, **options):
        self.sizes.append(len(outcomes))
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        await answer
        return ["ok"] * len(outcomes), False

    async def answer(self) -> None:
        self._answers.pop(0).set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def server(monkeypatch):
    server = Server()
    monkeypatch.setattr(commit, "commit_steps", server.commit_steps)
    return server


@pytest.fixture
async def committer():
    committer = Committer(None, 0, "s-1", None)
    running = asyncio.create_task(committer.run())
    yield committer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def put(committer, server, n):
    for _ in range(n):
        entry = f"{len(committer.waiting) + committer.committed + 1}-0"
        committer.put(Outcome(Token(0, 1, f"r0-{entry}", entry, 1, 1, RunSpec("job"), 0), "completed", b"", 0, 0))
    await server.settle()


async def test_what_ends_while_a_commit_is_under_way_goes_in_the_next(committer, server):
    await put(committer, server, 3)
    await put(committer, server, 4)
    await put(committer, server, 5)
    assert server.sizes == [3]
    await server.answer()
    assert server.sizes == [3, 9]
    await server.answer()
    await asyncio.wait_for(committer.idle(), 5)
    assert committer.committed == 12 and not committer.waiting


async def test_a_full_one_does_not_wait_for_the_last_but_a_third_does(committer, server):
    await put(committer, server, 3)
    await put(committer, server, 2 * COMMIT_BATCH + 1)
    assert server.sizes == [3, COMMIT_BATCH]
    await server.answer()
    assert server.sizes == [3, COMMIT_BATCH, COMMIT_BATCH]
    await server.answer()
    # The last is not full: it goes when none is under way.
    assert server.sizes[3:] == []
    await server.answer()
    assert server.sizes[3:] == [1]
    assert not committer._idle.is_set()
    await server.answer()
    await asyncio.wait_for(committer.idle(), 5)
    assert committer.committed == 2 * COMMIT_BATCH + 4


async def test_one_alone_is_followed_by_what_came_meanwhile(committer, server):
    await put(committer, server, 1)
    await put(committer, server, 2)
    await server.answer()
    assert server.sizes == [1, 2]
    await server.answer()
    await asyncio.wait_for(committer.idle(), 5)
