"""lib/keep, by commit_steps and report_steps: log lines are kept once, in order, within their bounds."""

from partition import Partition, completed, retrying

from weft.store.steps import report_steps


def packed(first: int, *lines: bytes) -> bytes:
    return b"%d|" % first + b"".join(b"%d:%b" % (len(line), line) for line in lines)


def kept(part: Partition, run: str) -> list[bytes]:
    return part.raw.lrange(part.keys.tasklog(part.p, run), 0, -1)


async def report(part: Partition, token: object, lines: bytes) -> list[bool]:
    return await report_steps(part.ns, part.p, [(token, 1, "")], session="s-1", lines={token.key: lines})


async def test_lines_come_with_the_commit_and_expire_with_the_run(part):
    token = await part.claimed()
    assert await part.commit(completed(token, lines=packed(1, b"a", b"", b"3:c|"))) == ["ok"]

    assert kept(part, token.run) == [b"a", b"", b"3:c|"]
    assert part.run(token.run)["logged"] == "3"
    assert 0 < part.raw.pttl(part.keys.tasklog(part.p, token.run)) <= token.spec.keep_ms


async def test_lines_that_come_again_are_left_out(part):
    token = await part.claimed()
    assert await report(part, token, packed(1, b"a", b"b")) == [True]
    assert await report(part, token, packed(1, b"a", b"b")) == [True]
    assert part.raw.pttl(part.keys.tasklog(part.p, token.run)) == -1
    assert await part.commit(completed(token, lines=packed(2, b"b", b"c"))) == ["ok"]
    assert await part.commit(completed(token, lines=packed(2, b"b", b"c"))) == ["done"]

    assert kept(part, token.run) == [b"a", b"b", b"c"]
    assert part.run(token.run)["logged"] == "3"


async def test_each_delivery_numbers_its_lines_from_one(part):
    token = await part.claimed()
    outcome = retrying(token)
    outcome.lines = packed(1, b"a", b"b")
    await part.commit(outcome)
    (again,) = await part.claim()
    await part.commit(completed(again, lines=packed(1, b"c")))

    assert kept(part, token.run) == [b"a", b"b", b"c"]


async def test_what_the_worker_dropped_is_counted(part):
    token = await part.claimed()
    await report(part, token, packed(1, b"a"))
    await part.commit(completed(token, lines=packed(51, b"y", b"z")))

    assert kept(part, token.run) == [b"a", b"y", b"z"]
    assert part.run(token.run)["logged"] == "52"


async def test_the_oldest_lines_go_by_number_and_by_size(part):
    token = await part.claimed()
    await report(part, token, packed(1, *(b"%d" % n for n in range(100))))
    await report(part, token, packed(101, b"new"))
    assert kept(part, token.run) == [*(b"%d" % n for n in range(1, 100)), b"new"]

    await part.commit(completed(token, lines=packed(102, *(bytes([n]) * 5_000 for n in range(4)))))
    assert kept(part, token.run) == [bytes([n]) * 5_000 for n in (1, 2, 3)]
    assert part.run(token.run)["logged"] == "105"


async def test_a_stale_step_keeps_nothing(part):
    token = await part.claimed()
    await part.commit(completed(token))
    assert await report(part, token, packed(1, b"late")) == [False]

    assert kept(part, token.run) == []
    assert "logged" not in part.run(token.run)
