"""The command line, imported once: each command is a process of its own, forked from one that has Weft in memory.

Starting Python and importing takes most of the time of a command, and the tests type hundreds. What they see is the same:
arguments, environment, directory, streams and exit code belong to the forked process alone.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: What most commands import sooner or later.
IMPORTED = """
    redis.asyncio uvloop weft.cli.commands weft.sdk.app weft.store.namespace typer._adapters
    sqlalchemy.ext.asyncio aiosqlite alembic.command
""".split()

#: What a command says on its way, at most; a line of JSON with its environment.
MAX_REQUEST = 1 << 20


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], input: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs `weft` with these words to its end."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX) as line,
    ):
        given.write(input)
        given.seek(0)
        line.settimeout(timeout)
        code = _ask(line, _host(), words, cwd=str(cwd), env=env, fds=[given.fileno(), out.fileno(), err.fileno()])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


def put_on_path(directory: Path) -> None:
    """Makes a command `weft` there for shells, which has the host run it; its streams are those of the shell."""
    file = directory / "weft"
    file.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import cli_host\nsys.exit(cli_host.pass_on({_host()!r}))\n"
    )
    file.chmod(0o755)


def pass_on(host: str) -> int:
    """Has the host run what this process was called with; returns the exit code."""
    with socket.socket(socket.AF_UNIX) as line:
        return _ask(line, host, sys.argv[1:], cwd=os.getcwd(), env=os.environ, fds=[0, 1, 2])


def _ask(
    line: socket.socket, host: str, words: Sequence[str], *, cwd: str, env: Mapping[str, str], fds: list[int]
) -> int:
    line.connect(host)
    request = json.dumps({"words": list(words), "cwd": cwd, "env": dict(env)}).encode() + b"\n"
    socket.send_fds(line, [request[:1]], fds)
    line.sendall(request[1:])
    said = line.makefile().readline()
    assert said, f"{words}: the host of the command line died"
    return int(said)


@functools.cache
def _host() -> str:
    """Starts the host of this process; it ends when its standard input does."""
    place = tempfile.mkdtemp(prefix="weft-cli-")
    path = os.path.join(place, "host")
    host = subprocess.Popen(
        [sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, text=True
    )
    assert host.stdout is not None and host.stdout.readline() == "ready\n"
    atexit.register(_end, host, place, os.getpid())
    return path


def _end(host: subprocess.Popen[str], place: str, owner: int) -> None:
    if os.getpid() == owner:
        host.kill()
        host.wait()
        Path(place, "host").unlink(missing_ok=True)
        Path(place).rmdir()


# --- the other side -------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Answers each request by a child that minds the command; returns in the command, when it is ready to be it."""
    for name in IMPORTED:
        with suppress(ImportError):  # then the command finds out
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection in a command would touch, and so copy, all of it
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the minders
    print("ready", flush=True)
    while True:
        line, _ = server.accept()
        if os.fork():
            line.close()
            continue
        server.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, fds = _read(line)
        if (child := os.fork()) == 0:
            line.close()
            _become(request, fds)
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        line.sendall(f"{code}\n".encode())
        os._exit(0)


def _read(line: socket.socket) -> tuple[dict, list[int]]:
    first, fds, _, _ = socket.recv_fds(line, 1, 3)
    rest = line.makefile("rb").readline(MAX_REQUEST)
    return json.loads(first + rest), list(array.array("i", fds))


def _become(request: dict, fds: list[int]) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["weft", *request["words"]]
    sys.path[0] = request["cwd"]


if __name__ == "__main__":
    serve(sys.argv[1])
    runpy.run_module("weft", run_name="__main__", alter_sys=True)
