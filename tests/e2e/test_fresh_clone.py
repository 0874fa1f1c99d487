"""A newcomer's first minutes: a clone in an empty directory, an empty home, and the two commands of the README."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Seconds `make install` may take, packages and all.
INSTALL_SECONDS = 400

#: What commands leave in a tree.
LEFT_BEHIND = set(
    ".venv .weft .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache __pycache__ dist node_modules".split()
)

pytestmark = pytest.mark.skipif(
    os.environ.get("WEFT_TEST_OFFLINE") == "1", reason="WEFT_TEST_OFFLINE=1: installing needs a package index"
)


class Clone:
    """The files of the working tree that git would hand out, somewhere else."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        self.tree = place / "weft"
        self.home.mkdir()
        for name in handed_out():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.tree / name)
        ours = ("WEFT_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        own = str(ROOT / ".venv")
        path = os.pathsep.join(part for part in clean["PATH"].split(os.pathsep) if not part.startswith(own))
        # Most of what is installed is never imported here: to compile it all takes longer than to unpack it.
        self.environment = clean | {"HOME": str(self.home), "PATH": path, "PIP_NO_COMPILE": "no"}

    def run(self, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.tree, env=self.environment, text=True, capture_output=True, timeout=timeout, check=False
        )


def handed_out() -> list[str]:
    """Lists the files git would hand out; of a tree that came without git, all but what commands leave there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
        names = [name for name in names if not LEFT_BEHIND & set(name.split("/"))]
    return [name for name in names if (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    fresh = Clone(tmp_path_factory.mktemp("clone"))
    done = fresh.run("make", "install", timeout=INSTALL_SECONDS)
    if done.returncode:
        pytest.fail(
            "make install failed in a fresh clone. It needs a package index or PIP_FIND_LINKS; set WEFT_TEST_OFFLINE=1 to leave"
            f" this test out where there is none.\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return fresh


def test_installing_again_does_nothing(clone: Clone) -> None:
    began = time.monotonic()

    done = clone.run("make", "install")

    assert done.returncode == 0
    assert time.monotonic() - began < 2


def test_help_lists_every_target(clone: Clone) -> None:
    listed = clone.run("make", "help").stdout

    for target in "help install dev test check format chaos bench docs build clean".split():
        assert f"make {target} " in listed


def test_the_test_command_runs_tests(clone: Clone) -> None:
    done = clone.run("make", "test", "PYTEST_ARGS=tests/unit/test_clock.py -q -n 0", timeout=120)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_make_dev_runs_real_tasks_and_stops_cleanly(clone: Clone) -> None:
    log = clone.home / "dev.log"
    with log.open("w") as out:
        dev = subprocess.Popen(
            ["make", "dev"], cwd=clone.tree, env=clone.environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        told = wait_for(log, "ready", dev)
        command = next(line for line in told.splitlines() if " enqueue " in line).split()
        done = clone.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (clone.tree / ".weft").is_dir()
    finally:
        # As a terminal does it on Ctrl-C: to everything in the foreground.
        os.killpg(dev.pid, signal.SIGINT)
        dev.wait(30)
    assert "stopped" in log.read_text()
    assert not (clone.tree / ".weft" / "valkey.sock").exists(), "the embedded server is still there"


def wait_for(log: Path, word: str, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 60
    while word not in (told := log.read_text()):
        assert process.poll() is None and time.monotonic() < until, told
        time.sleep(0.05)
    return told
