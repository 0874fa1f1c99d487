"""`python -m bench`: reads the options, measures, prints the tables.

Progress goes to stderr, tables to stdout. Exit status 1 means a row failed; a missed target is a
finding, not a failure.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from bench import server
from bench.cases import CASES, Plan, Results, run
from bench.document import render
from bench.machine import calm, description
from bench.peers import CACHE, PEERS
from bench.report import COLUMNS, as_json, peer_table, problems, scale_table, target_table, tree_table

#: What `--quick` replaces: a look in about 90 seconds instead of a measurement in about 20 minutes.
QUICK = {"rounds": 1, "tasks": 10_000, "samples": 100, "scale": 100_000}
FULL = {"rounds": 3, "tasks": 20_000, "samples": 300, "scale": 1_000_000}


def main() -> int:
    options = _parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        plan = _plan(options)
    except (ValueError, server.NoServer) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    for log in (CACHE / "logs").glob("*.log"):
        log.unlink()
    facts = {"server": server.version(plan.binary), **description()}
    results, interrupted = Results(), False
    try:
        run(plan, results)
    except KeyboardInterrupt:
        interrupted = True
        print("\nstopped; what was measured so far:", file=sys.stderr)
    facts["evenness"] = calm(results.spins)
    _show(plan, results, facts)
    if options.json:
        options.json.write_text(json.dumps(as_json(plan, results, facts), indent=2) + "\n")
    if options.write and not interrupted:
        options.write.write_text(render(plan, results, facts, _command()))
    return 130 if interrupted else int(bool(results.failures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Weft beside its peers.")
    parser.add_argument("--cases", default=",".join(CASES), help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds (default {FULL['rounds']})")
    parser.add_argument("--tasks", type=int, help=f"tasks a round for the fastest peers (default {FULL['tasks']})")
    parser.add_argument("--samples", type=int, help=f"latency samples a round (default {FULL['samples']})")
    parser.add_argument("--scale", type=int, help=f"tasks of the large queue (default {FULL['scale']})")
    parser.add_argument("--server", default="valkey", help="valkey, redis or the path of a server binary")
    parser.add_argument("--quick", action="store_true", help="about 90 seconds: a look, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure here")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also render the document here (docs/benchmarks.md)")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    sizes = (QUICK if options.quick else FULL) | {
        name: getattr(options, name) for name in FULL if getattr(options, name) is not None
    }
    if min(sizes.values()) < 1:
        raise ValueError("--rounds, --tasks, --samples and --scale are at least 1")
    return Plan(
        peers=[PEERS[name] for name in _chosen(options.peers, list(PEERS), "--peers")],
        cases=_chosen(options.cases, list(CASES), "--cases"),
        rounds=sizes["rounds"],
        n_tasks=sizes["tasks"],
        n_samples=sizes["samples"],
        n_scale=sizes["scale"],
        binary=server.locate(options.server),
    )


def _chosen(text: str, known: list[str], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"{option}: {', '.join(unknown) or 'nothing'} is not among {', '.join(known)}")
    return list(dict.fromkeys(names))


def _show(plan: Plan, results: Results, facts: dict[str, str]) -> None:
    print("\n" + "\n".join(f"{name}: {fact}" for name, fact in facts.items()))
    peers = (peer_table(plan, results, field, ranges=False) for field in COLUMNS)
    for block in (*peers, target_table(results), scale_table(plan, results), tree_table(results)):
        if block:
            print("\n" + block)
    for line in problems(plan, results):
        print("\n" + line)


def _command() -> str:
    return " ".join([".venv/bin/python -m bench", *sys.argv[1:]])


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
