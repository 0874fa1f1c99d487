"""A namespace: opened once, on servers that keep promises, and aware of what happens behind its connections."""

import asyncio
import logging

import pytest

from weft import SettingsError, StoreRefused, Unavailable
from weft.errors import EpochMissing, InvalidOption, NotExecuted, ScriptError
from weft.store.connection import Server
from weft.store.leases import take_lease
from weft.store.namespace import LAYOUT, MAX_PARTITIONS, Namespace, execute_many
from weft.store.runs import read_runs
from weft.store.scripts import load
from weft.store.timers import read_timers


@pytest.fixture
async def opened(server, namespace):
    """Opens namespaces on the shared server, closed after the test."""
    made: list[Namespace] = []

    async def make(name: str = namespace, *, url: str = server.url, **options) -> Namespace:
        ns = Namespace(Server(url), name, **options)
        made.append(ns)
        await ns.open()
        return ns

    yield make
    for ns in made:
        await ns.close()


# --- partitions and layout ------------------------------------------------------------------------


async def test_the_number_of_partitions_is_fixed_when_the_namespace_is_created(opened):
    assert (await opened(partitions=4)).partitions == 4
    # Whoever comes later and asks for nothing gets what there is.
    assert (await opened()).partitions == 4

    with pytest.raises(SettingsError, match=r"created with 4 partitions.*8 were asked for"):
        await opened(partitions=8)


async def test_one_server_has_one_partition_by_default(opened):
    assert (await opened()).partitions == 1


@pytest.mark.parametrize("partitions", [-1, MAX_PARTITIONS + 1])
async def test_senseless_numbers_of_partitions_are_refused(opened, partitions):
    with pytest.raises(SettingsError, match=f"1 to {MAX_PARTITIONS} partitions"):
        await opened(partitions=partitions)


async def test_two_that_create_it_at_once_agree(opened):
    spaces = await asyncio.gather(*(opened() for _ in range(10)))

    assert {ns.partitions for ns in spaces} == {1}
    assert len({tuple(ns.epochs) for ns in spaces}) == 1


async def test_a_namespace_written_by_a_newer_version_is_refused(opened, raw, namespace):
    ns = await opened()
    raw.hset(ns.keys.namespace_meta(), "layout", LAYOUT + 1)

    with pytest.raises(StoreRefused, match="written by a newer Weft"):
        await opened()


@pytest.mark.parametrize("name", ["", "a:b", "a{b}", "a b", "a*", "x" * 65, "ä", "a\n"])
async def test_a_name_that_could_not_stand_in_a_key_is_refused(opened, name):
    with pytest.raises(InvalidOption, match="namespace"):
        await opened(name)


# --- servers that lose work -----------------------------------------------------------------------


async def test_a_server_that_evicts_is_refused_with_the_remedy(launch, opened):
    evicting = launch(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})

    with pytest.raises(StoreRefused, match=r"maxmemory-policy is allkeys-lru.*CONFIG SET maxmemory-policy noeviction"):
        await opened("x", url=evicting.url)


async def test_a_server_that_does_not_persist_is_warned_about_with_the_remedy(launch, opened):
    forgetful = launch(config={"appendonly": "no"})

    ns = await opened("x", url=forgetful.url)

    (warning,) = ns.warnings
    assert "appendonly no" in warning
    assert "CONFIG SET appendonly yes" in warning


async def test_a_server_that_persists_is_not_warned_about(opened):
    assert (await opened()).warnings == []


async def test_a_server_that_forbids_config_is_judged_by_what_it_tells(launch, opened):
    hosted = launch(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"})
    with hosted.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")

    with pytest.raises(StoreRefused, match="volatile-lru"):
        await opened("x", url=hosted.url)


async def test_a_server_that_is_not_there_is_unavailable(opened, tmp_path):
    with pytest.raises(NotExecuted, match="cannot be reached"):
        await opened("x", url=f"unix://{tmp_path}/nobody")


async def test_a_wrong_password_says_what_to_check(launch, opened):
    guarded = launch()
    with guarded.client() as client:
        client.config_set("requirepass", "secret")

    for wrong in ("", "?password=other", "?username=nobody&password=secret"):
        with pytest.raises(StoreRefused, match="password in WEFT_REDIS_URL"):
            await opened("x", url=guarded.url + wrong)
    assert (await opened("x", url=f"{guarded.url}?password=secret")).partitions == 1


# --- epochs and incarnations ----------------------------------------------------------------------


async def test_a_new_epoch_is_learnt_and_the_call_made_once_more(opened, raw):
    ns = await opened()
    raw.hincrby(ns.keys.epoch(0), "number", 5)

    await read_timers(ns, 0, limit=1)

    assert ns.epoch(0) == int(raw.hget(ns.keys.epoch(0), "number"))


async def test_a_wiped_namespace_is_founded_again_with_the_same_partitions(opened, raw, caplog):
    ns = await opened(partitions=4)
    raw.delete(*raw.scan_iter(ns.keys.pattern()))

    with caplog.at_level(logging.WARNING):
        await read_timers(ns, 2, limit=1)

    assert "the store lost this partition" in caplog.text or ns.epochs
    # A newcomer finds what the others use, not the default.
    assert (await opened()).partitions == 4


async def test_a_namespace_that_others_founded_anew_with_other_partitions_is_refused(opened, raw):
    await opened(partitions=4)
    ns = await opened()
    raw.delete(*raw.scan_iter(ns.keys.pattern()))
    await opened(partitions=2)

    with pytest.raises(StoreRefused, match="has 2 partitions by now"):
        await read_timers(ns, 3, limit=1)


async def test_an_epoch_that_stays_missing_is_an_error(opened, raw, monkeypatch):
    ns = await opened()

    async def learn_nothing() -> None: ...

    raw.delete(ns.keys.epoch(0))
    monkeypatch.setattr(ns, "open", learn_nothing)
    with pytest.raises(EpochMissing):
        await read_timers(ns, 0, limit=1)
    monkeypatch.undo()
    await read_timers(ns, 0, limit=1)


async def test_every_new_connection_is_followed_by_a_look_at_who_answers(launch, opened, caplog):
    # Given a namespace on a server that is killed and restarted.
    own = launch()
    ns = await opened("x", url=own.url)
    before = ns.epochs
    with own.client() as client:
        assert client.hget(ns.keys.epoch(0), "incarnation").decode() == client.info("server")["run_id"]
    own.kill()
    with pytest.raises(Unavailable):
        await read_timers(ns, 0, limit=1)
    own.restart()

    # When it is used again.
    with caplog.at_level(logging.INFO):
        await read_timers(ns, 0, limit=1)
        await read_timers(ns, 0, limit=1)

    # Then the new process was noticed; the epoch stands, because nothing was lost.
    assert "another server process" in caplog.text
    assert ns.epochs == before
    with own.client() as client:
        assert client.hget(ns.keys.epoch(0), "incarnation").decode() == client.info("server")["run_id"]


async def test_a_server_that_answers_nobody_is_not_taken_for_one_without_keys(launch, opened):
    # Given a replica that lost its master and must not serve what may be stale.
    own = launch()
    ns = await opened("x", url=own.url)
    with own.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", 1)

        with pytest.raises(NotExecuted):
            await read_runs(ns, 0, ["r0-0000000000000000000000"])
        with pytest.raises(NotExecuted):
            await ns.read("GET", "x", p=0)

        client.replicaof("NO", "ONE")
    assert await read_runs(ns, 0, ["r0-0000000000000000000000"]) == [None]


async def test_a_read_only_replica_says_so(launch, opened):
    own = launch()
    ns = await opened("x", url=own.url)
    with own.client() as client:
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(NotExecuted, match="replica"):
            await take_lease(ns, 0, "sweeper", owner="s-1", lease_ms=1000)


async def test_a_stalled_server_costs_a_timeout_and_no_connection_is_used_again(launch, opened, monkeypatch):
    monkeypatch.setattr("weft.store.connection.COMMAND_TIMEOUT", 0.3)
    own = launch()
    ns = Namespace(Server(own.url), "x")
    ns.caller._timeout = 0.3
    await ns.open()
    own.pause()

    with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
        await read_timers(ns, 0, limit=1)
    own.resume()

    # The late answer to the first question is not taken for the answer to the second.
    assert await ns.read("ECHO", "second", p=0) == b"second"
    await ns.close()


# --- scripts --------------------------------------------------------------------------------------


async def test_scripts_survive_a_flush_also_in_a_pipeline(launch, opened):
    own = launch()
    ns = await opened("x", url=own.url)
    take, drop = load("take_lease"), load("drop_lease")
    key = ns.keys.lock(0, "sweeper")
    calls = [
        (take, take.pack({"lock": key}, {"owner": "a", "lease_ms": 60_000})),
        (take, take.pack({"lock": key}, {"owner": "b", "lease_ms": 60_000})),
        (drop, drop.pack({"lock": key}, {"owner": "a"})),
    ]
    with own.client() as client:
        for _ in range(2):
            client.script_flush()
            assert await execute_many(ns.caller, calls) == [1, 0, 1]
        client.script_flush()
        assert await take_lease(ns, 0, "sweeper", owner="a", lease_ms=60_000)


async def test_an_error_in_a_pipeline_stands_in_its_place(opened, raw):
    ns = await opened()
    take = load("take_lease")
    wrong, fine = ns.keys.lock(0, "wrong"), ns.keys.lock(0, "fine")
    raw.lpush(wrong, "x")
    calls = [(take, take.pack({"lock": key}, {"owner": "a", "lease_ms": 60_000})) for key in (wrong, fine)]

    broken, held = await execute_many(ns.caller, calls)

    assert isinstance(broken, ScriptError)
    assert held == 1
    raw.delete(wrong)


async def test_a_failing_line_is_named_by_file_and_number(opened, raw):
    ns = await opened()
    raw.lpush(ns.keys.lock(0, "sweeper"), "x")

    with pytest.raises(ScriptError, match=r"take_lease\.lua:\d+: .*WRONGTYPE") as caught:
        await take_lease(ns, 0, "sweeper", owner="a", lease_ms=1000)

    source = (load("take_lease"), caught.value.facts["where"])
    assert "GET" in _line(*source)
    raw.delete(ns.keys.lock(0, "sweeper"))


def _line(script, where: str) -> str:
    from weft.store.scripts import LUA

    file, _, number = where.partition(":")
    return (LUA / file).read_text().splitlines()[int(number) - 1]
