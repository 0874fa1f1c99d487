"""Explain answers with the one constraint that binds: every reason alone, and every two that can hold at once.

A scene is set from small functions, one per reason. Where nothing is to be run, a session in the directory stands for
the worker: so nobody claims, fires or admits anything while a test looks.
"""

import asyncio
import itertools
import json
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from weft import Weft
from weft.cli.runs import explain as explain_command
from weft.core.model import SessionInfo
from weft.store.sessions import end_session, renew_session
from weft.store.steps import claim_steps
from weft.store.timers import read_now

HOUR_MS = 3_600_000

#: The reasons, in the order in which they bind (docs/how-to/explain.md); of limits, the order in which they are tried.
REASONS = (
    "finished running retrying delayed struck task_paused queue_paused no_worker_queue no_worker_task"
    " concurrency_queue rate_queue concurrency_key concurrency_task rate_task rate_key admitting queued"
).split()
LIMITS = [reason for reason in REASONS if reason.startswith(("concurrency", "rate"))]

#: What cannot hold at once: where a run is, one place at a time; which workers there are; how a rate is keyed.
APART = [
    {"finished", "running", "retrying", "delayed", "admitting", "queued"},
    {"no_worker_queue", "no_worker_task", "running"},
    {"rate_task", "rate_key"},
    *({"queued", limit} for limit in LIMITS),
]
PAIRS = [pair for pair in itertools.combinations(REASONS, 2) if not any(set(pair) <= apart for apart in APART)]


def test_the_table_is_complete():
    assert len(REASONS) == 17
    # Of 136 pairs, 15 have the run in two places, 3 contradict each other about workers, one keys a rate in two ways,
    # and 6 have a limit hold back what has passed it.
    assert len(PAIRS) == 136 - 15 - 3 - 1 - 6


async def spend(ns, run: str) -> None:
    """Spends the rates that a run was let through with, as a worker does that begins it."""
    now_ms = await read_now(ns, 0)
    for gate in (await ns.read("HGET", ns.keys.run(0, run), "gates", p=0) or b"").decode().split():
        if "rate|" in gate:
            key = ns.keys.ratelimit(0, gate)
            await ns.read("HINCRBY", key, now_ms // (HOUR_MS // 50), 1, p=0)
            await ns.read("HDEL", key, f"@{run}", p=0)


class Scene:
    """A run of task `work` in queue `jobs`, and what keeps it from going on."""

    def __init__(self, app, reasons, start_worker, eventually):
        self.app, self.reasons, self.start_worker, self.eventually = app, set(reasons), start_worker, eventually
        self.exit = asyncio.Event()
        self.others = []
        self.session = ""

    def define(self):
        options = {"queue": "jobs", "retries": 1, "retry_delay": "5m", "jitter": False, "timeout": None}
        if "concurrency_task" in self.reasons:
            options["concurrency"] = 1
        if "concurrency_key" in self.reasons:
            options |= {"concurrency_key": lambda who: who, "concurrency_per_key": 1}
        if self.reasons & {"rate_task", "rate_key"}:
            options["rate_limit"] = "1/h"
        if "rate_key" in self.reasons:
            options["rate_key"] = lambda who: who

        @self.app.task(**options)
        async def work(who: str) -> None:
            if "retrying" in self.reasons:
                raise LookupError("not yet")
            await self.exit.wait()

        @self.app.task(queue="other")
        async def other() -> None: ...

        self.work = work

    async def set(self):
        """Brings the run to where it is, then shuts what is to be shut."""
        self.define()
        await self.app.open()
        if "concurrency_queue" in self.reasons:
            await self.app.controls.limit(queue="jobs", concurrency=1)
        if "rate_queue" in self.reasons:
            await self.app.controls.limit(queue="jobs", rate="1/h")
        await getattr(self, f"_{self.place()}")()
        if "struck" in self.reasons:
            await self.app.controls.strike("work", {"who": "ann"}, reason="bounces")
        if "task_paused" in self.reasons:
            await self.app.controls.pause(task="work", reason="flood")
        if "queue_paused" in self.reasons:
            await self.app.controls.pause(queue="jobs", reason="flood")
        if not self.reasons & {"running", "no_worker_queue"}:
            await self.open_session()

    def place(self):
        places = self.reasons & {"finished", "running", "retrying", "delayed", "admitting"}
        return places.pop() if places else "waiting"

    async def _waiting(self):
        await self.fill()
        self.run = await self.work.enqueue("ann")

    async def _finished(self):
        await self._waiting()
        await self.run.cancel("no longer needed")

    async def _running(self):
        worker = await self.start_worker(queues=["jobs"])
        self.run = await self.work.enqueue("ann")
        await self.eventually(lambda: worker.running)

    async def _retrying(self):
        worker = await self.start_worker(queues=["jobs"])
        self.run = await self.work.enqueue("ann")
        await self.eventually(lambda: worker.lanes[0].committer.committed)
        await worker.stop(grace=0)
        await self.fill()

    async def _delayed(self):
        await self.fill()
        self.run = await self.work.options(delay="1h").enqueue("ann")

    async def _admitting(self):
        """It was held by a pause that is over, and nobody has looked since."""
        await self.fill()
        await self.app.controls.pause(task="work")
        self.run = await self.work.enqueue("ann")
        await self.app.controls.resume(task="work")

    async def fill(self):
        """Another call takes the slots and uses up the rates: it is let through, and waits for a worker."""
        if self.reasons & set(LIMITS):
            self.others.append(await self.work.enqueue("ann"))
            await spend(self.app.engine().ns, self.others[-1].id)

    async def open_session(self):
        self.session = "w-explain"
        tasks = ["other"] if "no_worker_task" in self.reasons else list(self.app.tasks)
        about = SessionInfo(self.session, "app", "host", 1, ["jobs"], tasks, 10, 0)
        ns = self.app.engine().ns
        for p in range(ns.partitions):
            await renew_session(ns, p, session=self.session, lease_ms=600_000, about=msgspec.msgpack.encode(about))

    async def close(self):
        for run in [self.run, *self.others]:
            await run.cancel()
        self.exit.set()
        ns = self.app.engine().ns
        for p in range(ns.partitions) if self.session else ():
            await end_session(ns, p, session=self.session, streams=[], swept=False)


@pytest.fixture
async def play(app, one_home, start_worker, eventually, capsys, monkeypatch, server, namespace):
    """Sets a scene and returns it with what explain says, once it has been seen to say the same on the command line."""
    monkeypatch.setenv("WEFT_REDIS_URL", server.url)
    monkeypatch.setenv("WEFT_NAMESPACE", namespace)
    scenes = []

    async def set_scene(*reasons):
        scene = Scene(app, reasons, start_worker, eventually)
        scenes.append(scene)
        await scene.set()
        return scene, await ask(scene.run, capsys)

    yield set_scene
    for scene in scenes:
        await scene.close()


async def ask(run, capsys):
    """Returns what explain says; the JSON and the text of the command line must say the same."""
    why = await run.explain()
    capsys.readouterr()
    await asyncio.to_thread(explain_command, run.id, None, True)
    told = json.loads(capsys.readouterr().out)
    await asyncio.to_thread(explain_command, run.id, None, False)
    line = capsys.readouterr().out.strip()

    assert str(why) == why.text
    assert timeless(told.pop("text")) == timeless(why.text) == timeless(line)
    assert told.pop("id") == run.id
    fields = msgspec.to_builtins(why)
    del fields["text"]
    if why.reason == "running":
        # Since when is told from how long its worker has held it: exact to the moment of the look.
        first, second = (datetime.fromisoformat(each.pop("since")) for each in (told, fields))
        assert abs(first - second) < timedelta(seconds=5)
    assert told == fields
    return why


def timeless(text):
    """A sentence without how long it still takes: that passes between two looks."""
    text = re.sub(r"since [\d:-]+( [\d:]+)? UTC, attempt", "since …, attempt", text)
    return re.sub(r"in [\d.]+(ms|[smhd]| s)?( [\d.]+[ms]+)?(?=$|;)", "in …", text)


@pytest.mark.parametrize("reason", REASONS)
async def test_every_reason_is_found_and_its_facts_are_those_of_the_store(play, reason):
    scene, why = await play(reason)

    await check(scene, why, reason)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_of_two_reasons_the_first_of_the_table_is_the_answer(play, first, second):
    scene, why = await play(first, second)

    await check(scene, why, first)


async def check(scene, why, reason):
    """Compares reason, sentence and facts with what the store itself holds."""
    info, ns = await scene.run.info(), scene.app.engine().ns
    assert why.reason == (
        reason if reason in ("task_paused", "queue_paused") else re.sub("_(task|queue|key)$", "", reason)
    )
    assert (why.run_id, why.status, why.queue) == (scene.run.id, info.status, "jobs")
    facts = {name for name in why.__struct_fields__ if getattr(why, name)} - {
        "run_id",
        "status",
        "reason",
        "text",
        "queue",
    }
    if reason == "finished":
        assert facts == {"since"}
        assert why.since == info.finished_at
        assert why.text == f"cancelled at {clock(info.finished_at)}: RunCancelled: no longer needed"
    elif reason == "running":
        assert why.by == info.worker
        assert re.fullmatch(rf"running on worker {info.worker}( since .+)?, attempt 1", why.text)
    elif reason in ("retrying", "delayed"):
        assert facts == {"until"}
        assert why.until == info.due_at
        assert clock(info.due_at) in why.text
        assert why.text.endswith("the last one failed with LookupError") == (reason == "retrying")
    elif reason in ("struck", "task_paused", "queue_paused"):
        kind = "strike" if reason == "struck" else "pause"
        (entry,) = [e for e in await scene.app.controls.list() if e["kind"] == kind and (
            kind == "strike" or e["what"].split()[0] == reason.removesuffix("_paused"))]  # fmt: skip
        assert facts == {"since", "by"} | ({"gate"} if kind == "strike" else set())
        assert (why.by, why.since) == (entry["by"], moment(entry["at_ms"]))
        what = {"struck": "task work with who=ann is struck", "task_paused": "task work is paused"}
        said = what.get(reason, "queue jobs is paused")
        assert why.text == f"{said} since {clock(why.since)} by {entry['by']} ({entry['reason']})"
        assert why.gate == (f"strike|{entry['id']}" if kind == "strike" else "")
    elif reason.startswith("no_worker"):
        of_queue = reason == "no_worker_queue"
        assert facts == set()
        assert why.text == f"no live worker {'serves queue jobs' if of_queue else 'of queue jobs knows task work'}"
    elif reason.startswith("concurrency"):
        holders = [run.decode() for run in await ns.read("ZRANGE", ns.keys.gate(0, why.gate), 0, -1, p=0)]
        names = {
            "queue": ("queue|jobs", "the concurrency of queue jobs"),
            "key": ("key|work|ann", "concurrency key ann of task work"),
            "task": ("task|work", "the concurrency of task work"),
        }
        gate, name = names[reason.partition("_")[2]]
        assert (why.gate, why.holders, why.limit) == (gate, holders, "1")
        assert holders == [scene.others[0].id]
        assert why.waiting == await ns.read("ZCARD", ns.keys.line(0, why.gate), p=0)
        assert why.text == f"{name} is full (1 of 1): held by {holders[0]}"
    elif reason.startswith("rate"):
        names = {
            "queue": ("queuerate|jobs", "the rate limit of queue jobs"),
            "key": ("rate|work|ann", "the rate limit of task work for key ann"),
            "task": ("rate|work", "the rate limit of task work"),
        }
        gate, name = names[reason.partition("_")[2]]
        ((grain, used),) = [await ns.read("HGETALL", ns.keys.ratelimit(0, gate), p=0)]
        assert used == b"1"
        assert facts == {"gate", "limit", "until"}
        assert (why.gate, why.limit) == (gate, "1/h")
        assert why.until == moment((int(grain) + 1) * HOUR_MS // 50 + HOUR_MS)
        assert timeless(why.text) == timeless(f"{name} (1/h, 1 used) resets in 1.0 s")
    elif reason == "admitting":
        assert facts == {"gate"}
        assert (
            why.text == "nothing holds it back any more at the pause of task work: it is let through with the next look"
        )
    else:
        assert facts == set()
        assert why.text == "next in its queue"


async def test_a_timer_that_is_due_hides_no_missing_worker(play, advance):
    scene, _ = await play("delayed", "no_worker_queue")
    await advance(HOUR_MS + 1000)

    assert (await scene.run.explain()).text == "no live worker serves queue jobs"
    await scene.open_session()
    why = await scene.run.explain()
    assert why.reason == "delayed"
    assert why.text.endswith(", and goes on with the next look at timers")


async def test_what_a_worker_handed_back_because_it_does_not_know_the_task_lacks_a_worker(
    play, start_worker, eventually, server, namespace
):
    scene, _ = await play("no_worker_task")
    stranger = await start_worker(Weft("stranger", redis_url=server.url, namespace=namespace), queues=["jobs"])

    async def handed_back():
        return "returned" in [event.type for event in await scene.run.history()]

    await eventually(handed_back)
    await stranger.stop(grace=0)
    assert (await scene.run.info()).due_at is not None
    text = "no live worker of queue jobs knows task work; it rests until one registers"
    assert (await scene.run.explain()).text == text


async def test_a_step_in_the_hands_of_a_silent_worker_is_told_so(play, app, raw):
    scene, _ = await play("queued")
    ns = app.engine().ns
    await claim_steps(ns, 0, session=scene.session, queues=["jobs"], room=1)
    assert (await scene.run.explain()).text.startswith("running on worker w-explain since ")

    raw.delete(ns.keys.session(0, scene.session))
    why = await scene.run.explain()

    assert (why.reason, why.by) == ("running", "w-explain")
    assert ", attempt 1; that worker is silent, " in why.text


async def test_a_call_that_costs_more_than_a_lowered_rate_is_told_so(app, play):
    @app.task(queue="jobs", rate_limit="1000/h", rate_cost=600)
    async def ask() -> None: ...

    scene, _ = await play("queued")
    scene.others += [await ask.enqueue(), await ask.enqueue()]
    await app.controls.limit(task="ask", rate="100/h")
    why = await scene.others[1].explain()

    assert (why.reason, why.limit, why.until) == ("rate", "100/h", None)
    assert "never lets a call through that costs 600" in why.text


async def test_who_waits_behind_a_dearer_call_is_told_when_that_one_goes_on(app, start_worker, eventually):
    @app.task(rate_limit="10/h", rate_cost=lambda cost: cost)
    async def ask(cost: int) -> None: ...

    await start_worker()
    await (await ask.enqueue(5)).result(10)
    dear, cheap = await ask.enqueue(8), await ask.enqueue(1)
    own, why = await dear.explain(), await cheap.explain()

    assert (why.reason, why.gate, why.limit, why.until) == ("rate", "rate|ask", "10/h", own.until)
    assert " resets in 36" in why.text and why.text.endswith(f" s for run {dear.id}, which costs 8 and comes first")
    await dear.cancel()
    await cheap.result(10)


async def test_a_slot_that_is_free_again_is_said_to_be_so_until_somebody_looks(play):
    scene, _ = await play("concurrency_task")
    await scene.others[0].cancel()
    why = await scene.run.explain()

    assert (why.reason, why.gate) == ("admitting", "task|work")
    assert why.text.startswith("nothing holds it back any more at the concurrency of task work: ")


async def test_of_many_holders_some_are_named_and_the_rest_counted(app, play):
    @app.task(queue="jobs", concurrency=7)
    async def narrow() -> None: ...

    scene, _ = await play("queued")
    scene.others += await narrow.enqueue_many([()] * 9)
    why = await scene.others[8].explain()

    assert len(why.holders) == 5 and set(why.holders) < {run.id for run in scene.others[:7]}
    assert why.text.endswith(f"is full (7 of 7): held by {', '.join(why.holders)} and 2 more")
    assert (why.limit, why.waiting) == ("7", 2)


async def test_what_comes_first_in_the_queue_is_counted(play):
    scene, _ = await play("queued")
    second, third = await scene.work.enqueue("bob"), await scene.work.enqueue("bob")
    urgent = await scene.work.options(priority=9).enqueue("eve")
    scene.others += [second, third, urgent]

    assert [(await run.explain()).waiting for run in (urgent, scene.run, second, third)] == [0, 1, 2, 3]
    assert (await scene.run.explain()).text == "1 step of queue jobs comes first"
    assert (await third.explain()).text == "3 steps of queue jobs come first"


def moment(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def clock(at):
    return at.strftime("%H:%M:%S" if at.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S") + " UTC"
