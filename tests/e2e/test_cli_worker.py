"""`weft worker` and `weft dev`: signals, several processes, what is said at the start, what is left at the end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cli_project import ROOT, Project, is_gone, until

from servers import ServerProcess
from weft import __version__


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


def test_a_worker_says_who_it_is_and_what_it_serves(project: Project) -> None:
    worker = project.start("worker", "-q", "default", "-c", "7")
    told = dict(re.findall(r"^  (\w+) +(.+)$", worker.text, re.MULTILINE))
    assert worker.text.startswith(f"weft {__version__} worker\n") or f"\nweft {__version__} worker\n" in worker.text
    assert told["app"].startswith("shop (tasks:app, by [tool.weft] in ")
    assert told["tasks"] == "add, echo, fail, greet, hold, talk, urgent"
    assert (told["queues"], told["concurrency"], told["namespace"]) == ("default", "7", "weft")
    assert "embedded" in told["store"] and told["durability"] == "AOF everysec"
    assert told["data"] == str(project.root.resolve() / ".weft")
    assert "note: urgent go to queue 'high'" in worker.text

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("words", ["worker -q default,high", "worker -q default,high --processes 2", "dev"])
def test_a_worker_tells_programs_what_it_serves_in_one_document(words: str, project: Project) -> None:
    command = [sys.executable, "-m", "weft", *words.split(), "-c", "7", "--json"]
    with subprocess.Popen(command, cwd=project.root, env=project.env, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        told = json.loads(worker.stdout.readline())
        worker.terminate()
        assert worker.stdout.read() == "" and worker.wait(30) == 0

    assert (told["version"], told["pid"], told["app"], told["target"]) == (__version__, worker.pid, "shop", "tasks:app")
    assert told["tasks"] == ["add", "echo", "fail", "greet", "hold", "talk", "urgent"]
    assert (told["queues"], told["concurrency"]) == (["default", "high"], 7)
    assert told["processes"] == (2 if "2" in words else 1)
    assert (told["store"]["kind"], told["store"]["durability"]) == ("embedded", "AOF everysec")


def test_a_worker_without_standard_streams_works_and_stops_as_any_other(project: Project) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m weft worker <&- >&- 2>&-"
    worker = subprocess.Popen(["sh", "-c", command], cwd=project.root, env=project.env)
    try:
        run = project.weft("enqueue", "add", "a=1", "b=2").out.strip()
        project.weft("runs", "watch", run)
        # Of the numbers that others print to, none is a socket of the worker.
        named = (
            [os.readlink(f"/proc/{worker.pid}/fd/{number}") for number in range(3)] if os.path.isdir("/proc") else []
        )
        assert all(name == os.devnull for name in named)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()


def test_the_first_signal_lets_a_running_step_finish(project: Project) -> None:
    worker = project.start("worker")
    running = project.weft("enqueue", "hold", "name=a").out.strip()
    project.wait_for_file("a.started.1.1")

    worker.signal(signal.SIGTERM)
    worker.wait_for("stopping: nothing more is claimed")
    later = project.weft("enqueue", "add", "a=1", "b=1").out.strip()
    assert worker.process.poll() is None, "it waits for the step"
    (project.root / "a.go").touch()

    assert worker.wait() == 0
    shown = project.weft("runs", "show", running, "--json").document
    assert (shown["status"], shown["result"], shown["attempt"]) == ("completed", [1, 1], 1)
    assert project.weft("runs", "show", later, "--json").document["status"] == "queued", "nothing more was claimed"


def test_the_second_signal_hands_back_without_burning_an_attempt(project: Project) -> None:
    worker = project.start("worker", "--grace", "1h")
    running = project.weft("enqueue", "hold", "name=b").out.strip()
    project.wait_for_file("b.started.1.1")

    worker.signal(signal.SIGINT)
    worker.wait_for("stopping: nothing more is claimed")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert "hastening" in worker.text
    shown = project.weft("runs", "show", running, "--json").document
    assert (shown["status"], shown["attempt"], shown["delivery"], shown["crashes"]) == ("queued", 1, 2, 0)
    assert project.weft("keys", "audit").out == ""

    (project.root / "b.go").touch()
    project.start("worker")
    end = project.weft("runs", "watch", running, "--json").documents[-1]
    assert end["result"] == [1, 2], "the same attempt, delivered once more"


def test_a_dead_process_is_replaced_and_signals_are_passed_on(project: Project) -> None:
    parent = project.start("worker", "--processes", "2", "-c", "1", ready=None)
    first, second = {int(match[1]) for match in parent.wait_for(r"ready .*pid=(\d+)", n=2)}
    assert parent.text.count(f"weft {__version__} worker") == 1, "the parent speaks for its children"
    assert {child.pid for child in psutil.Process(parent.pid).children()} == {first, second}

    psutil.Process(first).kill()
    parent.wait_for(rf"a worker process died; another one is started  pid={first} code=-9")
    pids = {int(match[1]) for match in parent.wait_for(r"ready .*pid=(\d+)", n=3)}
    assert len(pids) == 3

    for name in "cd":
        project.weft("enqueue", "hold", f"name={name}")
    served = {int(project.wait_for_file(f"{name}.started.*").read_text()) for name in "cd"}
    assert served == pids - {first}, "with one slot each, both processes work"
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
    parent.wait_for("stopping: nothing more is claimed", n=2)
    for pid in served:
        os.kill(pid, signal.SIGTERM)  # as systemd does, which tells every process of a service
    for name in "cd":
        (project.root / f"{name}.go").touch()
    assert parent.wait() == 0
    assert "hastening" not in parent.text, "each process was told once"
    assert all(is_gone(pid) for pid in pids)
    assert {run["status"] for run in project.weft("runs", "ls", "--json").documents} == {"completed"}


def test_children_of_a_killed_parent_drain_by_themselves(project: Project) -> None:
    parent = project.start("worker", ready=None, env={"WEFT_PROCESSES": "2"})
    children = [int(match[1]) for match in parent.wait_for(r"ready .*pid=(\d+)", n=2)]
    assert {child.pid for child in psutil.Process(parent.pid).children()} == set(children), "not parents themselves"
    running = project.weft("enqueue", "hold", "name=e").out.strip()
    project.wait_for_file("e.started.1.1")

    parent.signal(signal.SIGKILL)
    parent.wait_for("stopping: .*the parent process is gone", n=2)
    (project.root / "e.go").touch()
    until(lambda: all(is_gone(child) for child in children))
    assert project.weft("runs", "show", running, "--json").document["result"] == [1, 1]


def test_a_worker_that_cannot_begin_can_still_be_stopped(
    project: Project, launch: Callable[..., ServerProcess]
) -> None:
    stuck = (
        "import asyncio\n@app.on_startup\nasync def never():\n    print_started()\n    await asyncio.Event().wait()\n"
    )
    note = "def print_started():\n    import sys; print('never ready', file=sys.stderr, flush=True)\n"
    (project.root / "tasks.py").write_text((project.root / "tasks.py").read_text() + note + stuck)
    worker = project.start("worker", ready="never ready", env={"WEFT_REDIS_URL": launch().url})
    worker.signal(signal.SIGTERM)
    worker.wait_for("stopping")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0 and "stopped before it was ready" in worker.text


@pytest.mark.parametrize("words", ["worker", "worker --processes 2"])
def test_a_worker_without_its_store_says_so_once(words: str, project: Project) -> None:
    refused = project.weft(*words.split(), code=4, WEFT_REDIS_URL="redis://:secret@127.0.0.1:1")
    assert refused.err.count("the store cannot be reached") == 1 and "secret" not in refused.err


def test_settings_that_make_no_sense_are_refused(project: Project) -> None:
    assert "'soon' is not a length of time" in project.weft("worker", "--grace", "soon", code=2).err
    assert "WEFT_LOG_LEVEL='loud' cannot be used" in project.weft("worker", code=2, WEFT_LOG_LEVEL="loud").err
    assert "'WEFT_CONCURRENCY'" in project.weft("worker", code=2, WEFT_CONCURRENCY="many").err


def test_dev_shows_a_command_that_works_and_stops_the_store_with_it(project: Project) -> None:
    dev = project.start("dev")
    assert "add(a: int, b: int) -> int" in dev.text and "queues default, high" in dev.text
    server = int((project.root / ".weft" / "valkey.pid").read_text())
    (shown,) = dev.wait_for(r"Try, in another terminal in .*:\n  (.+)\n")
    assert shown[1].endswith("weft enqueue add a=2 b=3 --watch")
    done = subprocess.run(
        shlex.split(shown[1]), cwd=project.root, env=project.env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "5"

    project.weft("enqueue", "add", "a=1", "b=1", "--delay", "1h")
    os.killpg(dev.pid, signal.SIGINT)  # as a terminal does at Ctrl-C: the server must not mind
    assert dev.wait() == 0
    until(lambda: is_gone(server))
    assert len(project.weft("runs", "ls").rows) == 2, "what was queued is kept"


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = ROOT / "examples" / "quickstart.py"
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=project.env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "5\nHello, Ada!\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes have another size there")
def test_a_worker_whose_lines_nobody_reads_goes_on_working_and_stops_within_its_grace(project: Project) -> None:
    mouth, end = os.pipe()
    command = [sys.executable, "-m", "weft", "worker", "--grace", "5s"]
    worker = subprocess.Popen(command, cwd=project.root, env=project.env, stdout=end, stderr=end)
    os.close(end)
    try:
        # More than a pipe takes.
        for _ in range(3):
            run = project.weft("enqueue", "talk", "words=" + "x" * 100_000).out.strip()
            assert project.weft("runs", "watch", run).code == 0
        run = project.weft("enqueue", "add", "a=1", "b=2").out.strip()
        assert project.weft("runs", "watch", run).code == 0
        shown = project.weft("runs", "show", run, "--json").document
        assert (shown["status"], shown["delivery"]) == ("completed", 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
        os.close(mouth)
