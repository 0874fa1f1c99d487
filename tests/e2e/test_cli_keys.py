"""`weft keys`, `weft doctor` and `weft bench` on a real store; what the audit finds when somebody tampers with it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from cli_project import Project

from servers import ServerProcess
from weft import Weft
from weft.engine import keyspace
from weft.errors import NotFound
from weft.store.audit import audit
from weft.store.embedded import EmbeddedServer
from weft.store.findings import Finding
from weft.store.keys import FAMILIES, GROUP, Keyspace


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose store holds a finished, a waiting and a delayed run, and stays up in between."""
    project = Project(tmp_path_factory.mktemp("keys"))
    held = EmbeddedServer.attach(project.root / ".weft")
    worker = project.start("worker", "--grace", "0s")
    project.weft("enqueue", "add", "a=1", "b=2", "--watch")
    worker.process.terminate()
    assert worker.wait() == 0
    project.weft("enqueue", "greet", "name=later", "--delay", "1h", "--idempotency-key", "k")
    project.weft("enqueue", "urgent")
    yield project
    project.close()
    held.detach()


def test_ls_counts_every_declared_family(project: Project) -> None:
    counts = {line["family"]: line["keys"] for line in project.weft("keys", "ls", "--json").documents}
    assert counts.keys() == FAMILIES.keys()
    assert (counts["run"], counts["wf.tasks"], counts["idempotency"], counts["log"]) == (3, 2, 1, 1)
    assert project.weft("keys", "ls").rows[2][:4] == ["run", "3", "hash", "with run"]


def test_memory_is_exact_when_small_and_estimated_when_sampled(project: Project) -> None:
    exact = {line["family"]: line for line in project.weft("keys", "memory", "--json").documents}
    assert exact["run"]["exact"] and exact["run"]["keys"] == 3 and exact["run"]["bytes"] > 300
    sampled = {line["family"]: line for line in project.weft("keys", "memory", "--sample", "1", "--json").documents}
    assert not sampled["run"]["exact"] and sampled["run"]["sampled"] == 1
    total = project.weft("keys", "memory").rows[-1]
    assert total[0] == "total" and int(total[2]) == sum(line["bytes"] for line in exact.values())


def test_a_run_is_explained_by_all_its_keys(project: Project) -> None:
    run = next(run for run in project.weft("runs", "ls", "--json").documents if run["idempotency_key"])
    explained = project.weft("keys", "explain", run["id"], "--json").document
    assert [key["family"] for key in explained["keys"]] == ["run", "idempotency", "timers", "log"]
    (spec,) = [field for field in explained["keys"][0]["fields"] if field["name"] == "spec"]
    assert spec["value"]["name"] == "greet" and spec["value"]["input"] == {"name": "later"}
    assert explained["keys"][1]["ttl_ms"] > 0 and "idempotency key 'k'" in explained["keys"][1]["role"]


def test_a_key_and_a_family_are_explained(project: Project) -> None:
    text = project.weft("keys", "explain", "weft:{0}:timers").rows
    assert ["type", "zset"] in text and ["inspect", "ZRANGE 'weft:{0}:timers' 0 -1 WITHSCORES"] in text
    assert project.weft("keys", "explain", "wf.tasks", "--json").document["type"] == "stream"
    assert "the families are namespace, epoch" in project.weft("keys", "explain", "nonsense", code=3).err
    assert "would hold" in project.weft("keys", "explain", "weft:{0}:repair", code=3).err


def test_audit_is_silent_until_something_is_wrong(project: Project) -> None:
    clean = project.weft("keys", "audit")
    assert (clean.out, clean.err) == ("", "all keys are as they should be\n")
    with redis.Redis(unix_socket_path=str((project.root / ".weft" / "valkey.sock").resolve())) as raw:
        raw.set("weft:{0}:mine", "x")
        found = project.weft("keys", "audit", "--json", code=1).documents
        assert [(f["key"], f["family"], f["problem"]) for f in found] == [
            ("weft:{0}:mine", "", "no declared family has such a key")
        ]
        assert found[0]["advice"]
        raw.delete("weft:{0}:mine")


def test_doctor_tells_the_store_and_what_waits(project: Project) -> None:
    told = project.weft("doctor", "--json").document
    assert told["store"]["url"].startswith("unix://") and told["store"]["kind"] == "embedded"
    assert told["store"]["directory"] == str(project.root.resolve() / ".weft")
    assert told["store"]["durability"] == "AOF everysec" and told["store"]["maxmemory_policy"] == "noeviction"
    assert told["namespace"]["partitions"] == 1 and told["timers"]["set"] == 1 and told["log"]["entries"] > 0
    assert told["queues"] == [{"queue": "high", "priority": 5, "waiting": 1, "in_flight": 0}]
    assert told["schedules"] == {"set": 0, "paused": 0, "overdue": [], "late_ms": 0} and told["dead_letters"] == 0
    assert told["database"]["status"] == "off" and told["database"]["url"].startswith("sqlite:///")
    assert {"python", "weft", "redis-py"} <= told["versions"].keys()
    (warning,) = [finding for finding in told["findings"] if finding["level"] != "ok"]
    assert "1 steps wait in 'high', which no live worker serves" in warning["message"] and "-q high" in warning["fix"]
    assert told["ok"] is True
    assert ["durability", "AOF everysec"] in project.weft("doctor").rows


def test_doctor_says_when_the_store_is_away_and_hides_the_password(tmp_path: Path) -> None:
    told = Project(tmp_path).weft("doctor", "--json", code=4, WEFT_REDIS_URL="redis://me:secret@127.0.0.1:1").document
    assert told["store"]["url"] == "redis://me:***@127.0.0.1:1" and not told["reachable"] and not told["ok"]
    said = Project(tmp_path).weft("doctor", code=4, WEFT_REDIS_URL="redis://me:secret@127.0.0.1:1")
    assert [row[0] for row in said.rows if row[0]] == [
        "store",
        "namespace",
        "versions",
        "problem",
    ]  # not: 0 dead letters
    assert told["findings"][0]["level"] == "problem" and told["findings"][0]["fix"]


@pytest.mark.parametrize(
    ("setting", "value", "url", "about"),
    [
        ("WEFT_REDIS_URL", "redis://me:secret@here:port", "redis://me:***@here:port", "store"),
        ("WEFT_PARTITIONS", "none", "redis://me:***@here:1", "settings"),
        ("WEFT_DATABASE_URL", "mysql://me:secret@here/db", "redis://me:***@here:1", "settings"),
    ],
)
def test_doctor_tells_the_setting_that_cannot_be_used(
    setting: str, value: str, url: str, about: str, tmp_path: Path
) -> None:
    env = {"WEFT_REDIS_URL": "redis://me:secret@here:1", setting: value}
    told = Project(tmp_path).weft("doctor", "--json", code=4, **env).document
    assert (told["store"]["url"], told["store"]["embedded"], told["reachable"]) == (url, False, False)
    (problem,) = told["findings"]
    assert (problem["level"], problem["about"]) == ("problem", about)
    assert "cannot be used" in problem["message"] and "secret" not in problem["message"]


def test_doctor_names_what_loses_work(tmp_path: Path, launch: Callable[..., ServerProcess]) -> None:
    careless = launch(config={"appendonly": "no", "maxmemory-policy": "allkeys-lru"})
    project = Project(tmp_path, WEFT_REDIS_URL=careless.url)
    told = project.weft("doctor", "--json", code=1).document
    levels = {finding["about"]: finding["level"] for finding in told["findings"]}
    assert (levels["eviction"], levels["persistence"]) == ("problem", "warning")
    assert "maxmemory-policy is allkeys-lru" in project.weft("enqueue", "add", "a=1", "b=1", code=4).err


def test_doctor_tells_what_stands_in_a_store_that_evicts(tmp_path: Path, launch: Callable[..., ServerProcess]) -> None:
    server = launch()
    project = Project(tmp_path, WEFT_REDIS_URL=server.url)
    project.weft("enqueue", "add", "a=1", "b=1")
    with closing(server.client()) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        told = project.weft("doctor", "--json", code=1).document
        assert (told["examined"], told["queues"][0]["waiting"], told["log"]["entries"]) == (True, 1, 1)

        client.config_set("maxmemory-policy", "noeviction")
        client.hset(Keyspace("weft").namespace_meta(), "layout", 99)
        newer = project.weft("doctor", "--json", code=1).document
        (problem,) = [finding for finding in newer["findings"] if finding["level"] == "problem"]
        assert "written by a newer Weft" in problem["message"] and not newer["examined"]
        assert "log" not in [row[0] for row in project.weft("doctor", code=1).rows]  # not: 0 entries


def test_doctor_comes_also_where_the_app_is_broken(tmp_path: Path) -> None:
    told = Project(tmp_path, tasks="1 / 0\n").weft("doctor", "--json", code=1, WEFT_REDIS_URI="?").document
    (problem,) = [finding for finding in told["findings"] if finding["level"] == "problem"]
    assert problem["about"] == "app" and "ZeroDivisionError" in problem["message"] and told["reachable"]
    assert "WEFT_REDIS_URI is no setting: did you mean WEFT_REDIS_URL?" in [
        each["message"] for each in told["findings"]
    ]


def test_profile_tells_the_cost_of_a_step_and_leaves_nothing(
    tmp_path: Path, launch: Callable[..., ServerProcess]
) -> None:
    server = launch()
    told = Project(tmp_path, WEFT_REDIS_URL=server.url).weft("bench", "profile", "-n", "300", "--json").document
    assert told["n_tasks"] == 300 and told["bytes_per_queued_task"] > 0
    assert 0 < told["step"]["script_calls"] < 3 and told["step"]["server_us"] > 0 and told["step"]["python_us"] > 0
    assert {"evalsha", "xadd"} <= {cost["command"] for cost in told["step"]["commands"]}
    with server.client() as client:
        assert client.dbsize() == 0


# --- what the audit finds -------------------------------------------------------------------------


class Tampered:
    """A namespace with one run of each kind, to be damaged."""

    def __init__(self, app: Weft, raw: redis.Redis) -> None:
        self.app, self.raw = app, raw
        self.keys: Keyspace = app.engine().ns.keys

    async def findings(self) -> list[Finding]:
        return await audit(self.app.engine().ns)

    async def problem(self) -> str:
        (found,) = await self.findings()
        assert found.advice
        return f"{found.family}: {found.problem}"


@pytest.fixture
async def space(server: ServerProcess, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tampered]:
    """A namespace that belongs to nobody else, and is gone afterwards whatever was done to it."""
    monkeypatch.setenv("WEFT_PARTITIONS", "1")
    app = Weft("audit", redis_url=server.url, namespace=f"a-{uuid.uuid4().hex[:12]}")

    @app.task
    async def job(data: bytes = b"") -> bytes:
        return data

    async with app:
        yield Tampered(app, raw)
        for key in raw.scan_iter(f"{app.engine().ns.keys.namespace}:*"):
            raw.unlink(key)


async def start(space: Tampered, *args: Any, **options: Any) -> str:
    run = await space.app.tasks["job"].options(**options).enqueue(*args)
    return run.id


async def test_runs_in_every_state_give_no_finding(space: Tampered) -> None:
    await start(space)
    await start(space, b"x" * 10_000)
    await start(space, delay="1h", deadline="2h", idempotency_key="k", priority=9)
    assert await space.findings() == []
    async with space.app.worker():
        done = await space.app.tasks["job"].enqueue(b"y" * 10_000)
        await done.result(timeout=10)
        assert await space.findings() == []
    assert await space.findings() == []


async def test_runs_in_full_flight_give_no_finding(space: Tampered) -> None:
    app = space.app

    @app.task(retries=2, retry_delay="1ms", jitter=False, keep_result="500ms")
    async def flaky(n: int) -> bytes:
        if n % 3 == 0:
            raise ValueError("again")
        return b"z" * (5_000 if n % 2 else 5)

    busy = True

    async def load() -> None:
        while busy:
            await flaky.enqueue_many([(n,) for n in range(50)])
            cancelled = await app.tasks["job"].options(delay="5ms", deadline="1m").enqueue(b"x" * 5_000)
            await cancelled.cancel()

    async with app.worker(grace=10):
        loading = asyncio.create_task(load())
        for _ in range(8):
            assert await space.findings() == []
        busy = False
        await loading
    assert await space.findings() == []


async def test_unknown_keys_wrong_types_and_wrong_partitions_are_found(space: Tampered) -> None:
    prefix = space.keys.prefix(0)
    space.raw.set(prefix + "mine", "x")
    space.raw.set(f"{space.keys.namespace}:{{x}}:odd".encode() + b"\xff", "x")
    space.raw.set(space.keys.log(0), "x")
    space.raw.sadd(space.keys.queues(7), "x")
    problems = {(finding.family, finding.problem) for finding in await space.findings()}
    assert problems == {
        ("", "no declared family has such a key"),
        ("log", "it is a string, and should be a stream"),
        ("queues", "it lies in partition 7, where nobody looks: the namespace has 1"),
    }


async def test_lifetimes_are_checked_both_ways(space: Tampered) -> None:
    space.raw.set(space.keys.lock(0, "sweeper"), "s-1")
    assert await space.problem() == "lock: it never expires, and should"
    space.raw.delete(space.keys.lock(0, "sweeper"))
    run = await start(space)
    space.raw.expire(space.keys.run(0, run), 100)
    assert await space.problem() == "run: the run is open and about to expire"
    space.raw.persist(space.keys.run(0, run))
    space.raw.expire(space.keys.log(0), 100)
    assert await space.problem() == "log: it is about to expire, and should stay"


async def test_a_finished_run_without_expiry_is_a_leak(space: Tampered) -> None:
    run = await start(space)
    await space.app.runs.get(run).cancel()
    assert await space.findings() == []
    space.raw.persist(space.keys.run(0, run))
    assert await space.problem() == "run: the run is finished and never expires: leaked"


async def test_a_run_whose_token_or_timer_vanished_is_found(space: Tampered) -> None:
    run = await start(space)
    (entry, _), *_ = space.raw.xrange(space.keys.tasks(0, "default", 5))
    space.raw.xdel(space.keys.tasks(0, "default", 5), entry)
    assert await space.problem() == "run: the run is open, but its token is gone: nobody will run it"
    await space.app.runs.get(run).cancel()

    late = await start(space, delay="1h", deadline="2h")
    space.raw.zrem(space.keys.timers(0), f"open:{late}")
    assert await space.problem() == "run: the run is open, but its timer is gone: nobody will run it"
    space.raw.delete(space.keys.timers(0))
    assert len(await space.findings()) == 2


async def test_a_token_that_was_handed_out_and_is_held_by_nobody_is_found(space: Tampered) -> None:
    await start(space)
    stream = space.keys.tasks(0, "default", 5)
    space.raw.xgroup_create(stream, GROUP, "0")
    space.raw.xreadgroup(GROUP, "s-ghost", {stream: ">"})
    assert (
        await space.problem() == "wf.tasks: consumer s-ghost holds tokens, but no such session exists: they are stuck"
    )
    space.raw.xgroup_delconsumer(stream, GROUP, "s-ghost")
    assert await space.problem() == "run: the run is open, but its token is gone: nobody will run it"


async def test_tokens_and_timers_without_their_run_are_found(space: Tampered) -> None:
    queued, late = await start(space), await start(space, delay="1h")
    space.raw.delete(space.keys.run(0, queued), space.keys.run(0, late))
    space.raw.zadd(space.keys.timers(0), {"sing:x": 1})
    problems = sorted(finding.problem for finding in await space.findings())
    assert problems[0] == f"timer open:{late} belongs to a run that is gone"
    assert problems[1] == "timer sing:x is of no known kind"
    assert problems[2].endswith(f"belongs to run {queued}, which is gone")


async def test_blobs_are_leaks_without_their_run_and_missed_by_it(space: Tampered) -> None:
    run = await start(space, b"x" * 10_000)
    (blob,) = space.raw.scan_iter(f"{space.keys.prefix(0)}blob:*")
    space.raw.expire(blob, 100)
    assert await space.problem() == "blob: it is the input of an open run, and about to expire"
    space.raw.rename(blob, space.keys.blob(0, run, "0" * 64))
    space.raw.persist(space.keys.blob(0, run, "0" * 64))
    assert {finding.problem for finding in await space.findings()} == {
        "the run is open, but the blob of its input is gone",
        "its run does not need it, and it never expires: leaked",
    }
    await space.app.runs.get(run).cancel()
    space.raw.delete(space.keys.run(0, run))
    assert await space.problem() == "blob: it belongs to no run and never expires: leaked"


async def test_runs_that_wait_for_repair_are_named(space: Tampered) -> None:
    run = await start(space)
    space.raw.zadd(space.keys.repair(0), {run: 1})
    assert await space.problem() == f"repair: run {run} made a script fail; nothing is guessed about it"


async def limited(space: Tampered) -> None:
    """Leaves runs at gates, and something that an operator set."""

    @space.app.task(concurrency=1, rate_limit="5/m", queue="narrow")
    async def narrow() -> None: ...

    @space.app.task(unique_for="1h", queue="narrow")
    async def once() -> None: ...

    await narrow.enqueue_many([()] * 2)
    await once.enqueue()
    await space.app.controls.pause(queue="nobody")
    space.raw.rpush(space.keys.tasklog(0, (await once.enqueue()).id), "line")


async def test_schedules_that_cannot_tick_are_named(space: Tampered) -> None:
    timers, key = space.keys.timers(0), space.keys.schedule(0, "s")
    await space.app.schedules.create("s", "@yearly", "job")
    assert await space.findings() == []
    space.raw.zrem(timers, "cron:s")
    assert await space.problem() == "schedule: the schedule has no timer: it never ticks"
    await space.app.schedules.pause("s")
    assert await space.findings() == []
    space.raw.zadd(timers, {"cron:s": 1})
    assert await space.problem() == "timers: timer cron:s belongs to a paused schedule"
    space.raw.zrem(timers, "cron:s")
    space.raw.srem(space.keys.schedules(0), "s")
    assert await space.problem() == "schedule: the list of schedules lacks it: it is not shown"
    space.raw.delete(key)
    space.raw.zadd(timers, {"cron:s": 1})
    assert await space.problem() == "timers: timer cron:s belongs to a schedule that is gone"
    async with space.app.worker():
        while space.raw.zcard(timers):
            await asyncio.sleep(0.01)
    space.raw.hset(key, "odd", 1)
    assert await space.problem() == "schedule: it lacks the fields of a schedule (rev, spec)"


def waiting_keys(space: Tampered, run: str) -> None:
    """Writes keys of the kinds that only come with people, signals, undoing, caching and slots that are handed on."""
    space.raw.hset(space.keys.approval(0, f"{run}/ask"), "status", "pending")
    space.raw.zadd(space.keys.pending_approvals(0), {f"{run}/ask": 1})
    space.raw.hset(space.keys.heirs(0), "key|job|bob", run)
    space.raw.hset(space.keys.signals(0, run), "n", 1)
    space.raw.rpush(space.keys.undo(0, run), "each#0")
    space.raw.set(space.keys.cache(0, "flow.each", "d"), "x", px=60_000)
    space.raw.set(space.keys.secret(), "x")
    space.raw.hset(space.keys.updates(0, run), "n", 1)
    space.raw.set(space.keys.status_event(0, "d"), "1-0 1 d", px=60_000)
    for key in (space.keys.journal(0, run), space.keys.mail(0, run)):
        space.raw.rpush(key, "1 begin - 1\n")
        space.raw.pexpire(key, 60_000)


async def test_every_kind_of_key_can_be_explained(space: Tampered, eventually: Callable[..., Any]) -> None:
    engine = space.app.engine()
    run = await start(space, b"x" * 10_000, idempotency_key="k", deadline="1h")
    await limited(space)
    space.raw.zadd(space.keys.repair(0), {run: 1})
    late = await start(space, b"x", delay="1h")
    space.raw.zadd(space.keys.unserved(0), {f"gpu job - 1 {late}": 0})
    await space.app.schedules.create("yearly", "@yearly", "job")
    space.raw.rpush(space.keys.tasklog(0, run), "a line")
    space.raw.hset(space.keys.run(0, run), "logged", 1)
    space.raw.zadd(space.keys.dlq(0), {run: 1})
    space.raw.hset(
        space.keys.archived(0), mapping={"database": "d", "name": "url", "entry": "0-0", "passed": 0, "at": 1}
    )
    graph = space.app.graph("flow")

    @graph.node(map="[1, 2]", queue="other")
    async def each(item: int) -> int:
        return item

    graph.wait("long", duration="1h")
    graph.gather("both", after=["long", each])
    flow = await graph.start()
    waiting_keys(space, flow.id)
    await space.app.status.publish("elsewhere", "running", parent_id="above")
    async with space.app.worker(queues=["other"]):
        await eventually(lambda: space.raw.exists(space.keys.context(0, flow.id), space.keys.arrivals(0, flow.id)) == 2)
        await eventually(lambda: space.raw.exists(space.keys.lock(0, "timers"), space.keys.lock(0, "sweeper")) == 2)
        # The worker takes the pebble of its timers whenever it likes.
        found = {
            key.decode()
            for key in space.raw.scan_iter(f"{space.keys.namespace}:*")
            if b"@" not in key and not key.endswith(b":admit")
        }
        explained = [explanation for key in found for explanation in await keyspace.explain(engine, key)]
        kinds = {explanation.family for explanation in explained}
        assert kinds == FAMILIES.keys() - {"inbox", "admit"}, "all but the channel leave a key; a mark is gone at once"
        (sessions,) = [explanation for explanation in explained if explanation.family == "sessions"]
        assert sessions.fields[0].value["queues"] == ["other"]
    roles = {explanation.family: explanation.role for explanation in await keyspace.explain(engine, run)}
    assert roles.keys() == {"run", "blob", "tasklog", "idempotency", "wf.tasks", "timers", "log"}
    of_graph = {explanation.family for explanation in await keyspace.explain(engine, flow.id)}
    assert of_graph == {"run", "ir", "ledger", "context", "arrivals", "map", "items", "results", "log"}
    await flow.cancel()
    space.raw.delete(space.keys.queues(0))
    space.raw.set(space.keys.queues(0), "x")
    (wrong,) = await keyspace.explain(engine, space.keys.queues(0))
    assert wrong.fields[0].value == "string" and "should be a set" in wrong.fields[0].meaning
    with pytest.raises(NotFound):
        await keyspace.explain(engine, "r5-00000000000000000000A0")
