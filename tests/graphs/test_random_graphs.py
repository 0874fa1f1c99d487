"""Random graphs on real workers come to what the reference says."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from graphs.comparing import differences, start
from graphs.generator import CONSTRUCTS, Graph, show, table
from graphs.workload import declare
from weft import Weft

#: Seeds of the ordinary suite.
SEEDS = range(40)


def test_the_sample_holds_every_construct_and_every_pair_of_them() -> None:
    counts = table(Graph(seed) for seed in SEEDS)
    print(f"\n{show(counts)}")
    missing = [pair for pair in itertools.combinations_with_replacement(sorted(CONSTRUCTS), 2) if not counts[pair]]
    assert not missing, f"never together in one graph: {missing}"


@pytest.mark.parametrize("part", range(4))
async def test_random_graphs_come_to_what_the_reference_says(app: Weft, start_worker, put_away, part: int) -> None:
    declare(app)
    await start_worker(concurrency=20)
    graphs = [Graph(seed) for seed in SEEDS][part::4]

    runs = [await start(app, graph) for graph in graphs]
    found = await asyncio.gather(*(differences(graph, run) for graph, run in zip(graphs, runs, strict=True)))

    assert not [line for lines in found for line in lines], "\n".join(line for lines in found for line in lines)
    await put_away()
