"""What graphs cost: chains and maps beside BullMQ's flows and DBOS, and Weft beside itself where graphs and maps are large."""

import statistics

from bench.measurement import WARM_PART, Measurement, Producer
from bench.processes import cpu_seconds, halted, running, wait_for_rest

#: Steps of a chain.
STEPS = 10
#: Chains that a worker does before those that count.
WARM_CHAINS = 20
#: Items of the map that is compared.
ITEMS = 1000
#: Times that map is made in one round.
REPEATS = 5
#: Items of the large maps of Weft.
LARGE = (10_000, 100_000)
#: Nodes of the large graph.
MANY_NODES = 5_000
#: Steps of each run that has come to its wait when memory is measured; five of its ten nodes are still to come.
STEPS_BEFORE_WAIT = 5
#: Seconds a case may take before it fails.
PATIENCE_S = 240.0

Figures = dict[str, float]


def chain_case(m: Measurement, n: int) -> Figures:
    """Steps per second of `n` chains that are in flight at once, drained by one worker process that is up and warm.

    Ten thousand steps take a second or two: processes that are still starting would be a great part of that. So the worker
    does some chains first, and is halted while the others are started. Beside the rate stands what a step costs in
    processor time: that is the same on a machine that is busy with something else.
    """
    steps = (n + WARM_CHAINS) * STEPS
    with m.producing() as producer, m.working(producer.worker_command(1)) as worker:
        producer.driver.call("chains", WARM_CHAINS, timeout_s=PATIENCE_S)
        m.watch(WARM_CHAINS * STEPS, worker)
        wait_for_rest(worker.pid)
        with halted(worker):
            producer.driver.call("chains", n, timeout_s=PATIENCE_S)
        pids = {"worker": worker.pid, "server": int(m.server.client.info("server")["process_id"])}
        spent: list[dict[str, float]] = []

        def note() -> None:
            spent.append({name: cpu_seconds(pid) for name, pid in pids.items()})

        figures = {"chain_steps": m.watch(steps, worker, when_warm=note)}
        note()
    m.verify(steps)
    for name in pids:
        figures[f"chain_{name}_us"] = (spent[1][name] - spent[0][name]) / (steps * (1 - WARM_PART)) * 1e6
    return figures


def map_case(m: Measurement) -> Figures:
    """Seconds from the start of a map of no-op items to its awaited result, one idle worker process."""
    with m.producing() as producer, m.working(producer.worker_command(1)):
        _scatter(producer, 10)
        n, samples = 10, []
        for _ in range(REPEATS if m.peer.share >= 1 else 1):
            samples.append(_scatter(producer, ITEMS))
            n += ITEMS
    m.verify(n)
    return {"map_s": statistics.median(samples)}


def large_maps_case(m: Measurement) -> Figures:
    """Seconds of maps of 10,000 and of 100,000 items."""
    with m.producing() as producer, m.working(producer.worker_command(1)):
        _scatter(producer, 10)
        figures = {f"map_{n}_s": _scatter(producer, n) for n in LARGE}
    m.verify(10 + sum(LARGE))
    return figures


def memory_case(m: Measurement, n: int) -> Figures:
    """Bytes of a run of ten nodes, five of which have ended while it waits; the log that tells of it is counted apart."""
    with m.producing() as producer:
        producer.driver.call("waiting", 50, timeout_s=PATIENCE_S)
        command = producer.worker_command(1)
    m.drain(command, 50 * STEPS_BEFORE_WAIT)
    before, log_before = m.server.memory_at_rest(), _log_bytes(m)
    with m.producing() as producer:
        producer.driver.call("waiting", n, timeout_s=PATIENCE_S)
    m.drain(command, (50 + n) * STEPS_BEFORE_WAIT)
    log = _log_bytes(m) - log_before
    return {"run_bytes": (m.server.memory_at_rest() - before - log) / n, "run_log_bytes": log / n}


def nodes_case(m: Measurement, n: int, nodes: int) -> Figures:
    """Steps per second of the first ten steps of `n` runs of a chain that has so many nodes."""
    with m.producing() as producer:
        producer.driver.call("long_chains", n, nodes, timeout_s=PATIENCE_S)
        command = producer.worker_command(1)
    with running(command, env=m.env, cwd=m.cwd, log=m.log) as worker:
        return {f"nodes_{nodes}": m.watch(n * STEPS, worker)}


def _scatter(producer: Producer, n: int) -> float:
    return producer.driver.timed("scatter", n, timeout_s=PATIENCE_S)


def _log_bytes(m: Measurement) -> int:
    """Bytes of the streams that tell what happened; they are trimmed once they are archived, whatever runs there are."""
    logs = [key for key in m.server.client.scan_iter("*:log") if m.server.client.type(key) == b"stream"]
    return sum(int(m.server.client.memory_usage(key, samples=0) or 0) for key in logs)


__all__ = ["chain_case", "large_maps_case", "map_case", "memory_case", "nodes_case"]
