"""The embedded server: who starts it, who shares it, who stops it, and what a crash at any point leaves behind.

Real servers, real processes, real signals. Every server lives below the test's own `tmp_path`; the ones a test
leaves running are recognised by their configuration file and ended by number.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from holders import (
    ON_LINUX,
    Hold,
    client,
    eventually,
    get,
    is_alive,
    is_gone,
    put,
    real_binaries,
    servers_on,
    wrapped_server,
)
from pytest import MonkeyPatch

from weft.errors import SettingsError, Unavailable
from weft.store import binary, embedded
from weft.store.embedded import EmbeddedServer, find_binary

# --- a life -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", real_binaries())
def test_a_server_starts_serves_stops_and_keeps_its_data(path: str, home: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SERVER_BINARY", path)

    first = EmbeddedServer.attach(home)
    put(first.url, kept="yes")
    with client(first.url) as connection:
        settings = connection.config_get()
    adopted = EmbeddedServer.attach(home)
    adopted.detach()
    first.detach()

    assert first.started_here and first.directory == home and first.url == f"unix://{settings['unixsocket']}"
    assert not adopted.started_here and (adopted.pid, adopted.binary) == (first.pid, first.binary)
    assert first.binary == find_binary() and first.binary.origin == "setting"
    assert is_gone(first.pid) and not (home / "valkey.sock").exists() and not list((home / "holders").iterdir())
    expected = {
        "port": "0",
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "1024",
        "auto-aof-rewrite-min-size": str(256 << 20),
        "aof-load-truncated": "yes",
        "dir": str(home / "data"),
    }
    assert {name: settings[name] for name in expected} == expected

    second = EmbeddedServer.attach(home)
    assert second.started_here and second.pid != first.pid
    assert get(second.url, "kept") == "yes"


def test_a_second_process_shares_the_server_and_its_data(home: Path, hold: Hold) -> None:
    here = EmbeddedServer.attach(home)
    put(here.url, shared="yes")

    there = hold().about

    assert there == {"pid": here.pid, "url": here.url, "started": False}
    assert get(there["url"], "shared") == "yes"


def test_the_last_one_out_stops_the_server_and_the_first_does_not(home: Path, hold: Hold) -> None:
    starter = hold()
    assert starter.about["started"]
    other = hold()
    assert not other.about["started"]

    assert starter.told("detach") == "detached"
    assert is_alive(starter.about["pid"])

    assert other.told("detach") == "detached"
    assert is_gone(starter.about["pid"])


def test_a_process_that_ends_without_detaching_detaches(home: Path, hold: Hold) -> None:
    holder = hold()

    holder.leave()

    assert is_gone(holder.about["pid"]) and not list((home / "holders").iterdir())


def test_detaching_twice_gives_up_only_one_hold(home: Path) -> None:
    first, second = EmbeddedServer.attach(home), EmbeddedServer.attach(home)

    first.detach()
    first.detach()
    first.detach(stop=True)

    assert is_alive(second.pid)


def test_stop_ends_the_server_whoever_holds_it(home: Path, hold: Hold) -> None:
    here, there = EmbeddedServer.attach(home), hold()
    assert there.told("stop") == "stopped"

    assert is_gone(here.pid)
    here.detach()


def test_twenty_processes_at_once_get_one_server(home: Path, hold: Hold) -> None:
    holders = [hold() for _ in range(20)]

    assert len({holder.about["pid"] for holder in holders}) == 1
    assert sum(holder.about["started"] for holder in holders) == 1
    assert len(servers_on(home)) == 1

    for holder in holders:
        holder.process.stdin.close()  # type: ignore[union-attr]
    assert [holder.process.wait(10) for holder in holders] == [0] * 20
    assert not servers_on(home) and not list((home / "holders").iterdir())


# --- signals and forks --------------------------------------------------------------------------------------


def test_ctrl_c_in_the_holders_terminal_does_not_reach_the_server(home: Path, hold: Hold) -> None:
    holder = hold()
    put(holder.about["url"], before="yes")

    os.killpg(holder.process.pid, signal.SIGINT)

    assert holder.heard() == "interrupted"
    assert get(holder.about["url"], "before") == "yes"
    assert os.getsid(holder.about["pid"]) != os.getsid(holder.process.pid)


def test_a_forked_child_does_not_give_up_its_parents_hold(home: Path, hold: Hold) -> None:
    parent = hold()

    assert parent.told("fork and exit") == 0
    child = parent.told("fork")  # which detaches with stop=True
    os.kill(child, signal.SIGKILL)

    assert is_alive(parent.about["pid"]) and len(list((home / "holders").iterdir())) == 1


def test_a_forked_child_does_not_keep_its_dead_parents_hold(home: Path, hold: Hold) -> None:
    here, parent = EmbeddedServer.attach(home), hold()
    child = parent.told("fork")
    try:
        parent.kill()
        here.detach()
        assert is_gone(here.pid)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not ON_LINUX, reason="reads /proc")
def test_the_server_inherits_no_descriptor_but_its_own_lock(home: Path) -> None:
    server = EmbeddedServer.attach(home)

    opened = {os.path.realpath(link) for link in Path(f"/proc/{server.pid}/fd").iterdir()}

    ours = {Path(name).name for name in opened if name.startswith(str(home)) and "/data/" not in name}
    assert ours - {"valkey.log"} == {"running"}
    assert not any(os.get_inheritable(fd) for fd in embedded._locked_fds)


@pytest.mark.skipif(not ON_LINUX, reason="reads /proc")
def test_the_servers_allocator_is_told_to_keep_what_it_frees(home: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    server = EmbeddedServer.attach(home)

    assert b"GLIBC_TUNABLES=glibc.malloc.tcache_count=65535" in Path(f"/proc/{server.pid}/environ").read_bytes()


# --- crashes ------------------------------------------------------------------------------------------------


def test_after_every_holder_was_killed_the_next_adopts_the_server(home: Path, hold: Hold) -> None:
    holder = hold()
    put(holder.about["url"], kept="yes")
    holder.kill()

    adopted = EmbeddedServer.attach(home)
    assert (adopted.pid, adopted.started_here) == (holder.about["pid"], False)
    assert get(adopted.url, "kept") == "yes"

    adopted.detach()
    assert is_gone(adopted.pid) and not list((home / "holders").iterdir())


def test_after_the_server_was_killed_the_next_restarts_it_with_its_data(home: Path) -> None:
    first = EmbeddedServer.attach(home)
    put(first.url, kept="yes")
    os.kill(first.pid, signal.SIGKILL)
    assert is_gone(first.pid) and (home / "valkey.sock").exists() and (home / "valkey.pid").exists()

    second = EmbeddedServer.attach(home)
    assert second.started_here and second.pid != first.pid
    assert get(second.url, "kept") == "yes"

    # The first hold is on the directory's server, whichever process that is by now.
    second.detach()
    assert is_alive(second.pid)
    first.detach()
    assert is_gone(second.pid)


def test_detaching_from_a_server_that_is_gone_is_quiet(home: Path) -> None:
    server = EmbeddedServer.attach(home)
    os.kill(server.pid, signal.SIGKILL)
    assert is_gone(server.pid)

    server.detach()


def test_a_holder_killed_while_the_server_starts_leaves_it_to_the_next(
    home: Path, tmp_path: Path, hold: Hold, monkeypatch: MonkeyPatch
) -> None:
    slow = wrapped_server(tmp_path / "slow-server", before=f"touch {tmp_path}/began; sleep 0.5")
    monkeypatch.setenv("WEFT_SERVER_BINARY", slow)
    starter = hold()
    assert eventually((tmp_path / "began").exists)
    starter.kill()
    assert not (home / "valkey.pid").exists()

    adopted = EmbeddedServer.attach(home)

    assert not adopted.started_here
    assert [process.pid for process in servers_on(home)] == [adopted.pid]


def test_a_hung_server_nobody_holds_is_replaced(home: Path, hold: Hold, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "ANSWER_SECONDS", 0.1)
    holder = hold()
    put(holder.about["url"], kept="yes")
    os.kill(holder.about["pid"], signal.SIGSTOP)
    holder.kill()

    replaced = EmbeddedServer.attach(home, timeout=1.5)

    assert replaced.started_here and get(replaced.url, "kept") == "yes"
    assert is_gone(holder.about["pid"])


def test_a_hung_server_somebody_holds_is_left_alone(home: Path, hold: Hold, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "ANSWER_SECONDS", 0.1)
    holder = hold()
    os.kill(holder.about["pid"], signal.SIGSTOP)

    with pytest.raises(Unavailable, match="does not answer"):
        EmbeddedServer.attach(home, timeout=0.5)

    assert is_alive(holder.about["pid"])
    os.kill(holder.about["pid"], signal.SIGCONT)
    assert EmbeddedServer.attach(home).pid == holder.about["pid"]


def test_a_process_that_got_a_dead_servers_number_is_never_signalled(home: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "ANSWER_SECONDS", 0.1)
    EmbeddedServer.attach(home).detach()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        # Even when something does hold the server's lock: the number leads to a process of another kind.
        (home / "valkey.pid").write_text(str(bystander.pid))
        with (home / "running").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(Unavailable, match="does not answer"):
                EmbeddedServer.attach(home, timeout=0.3)
        assert bystander.poll() is None

        server = EmbeddedServer.attach(home)
        assert server.started_here and server.pid != bystander.pid
        server.detach(stop=True)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_another_directorys_server_on_the_socket_is_neither_adopted_nor_stopped(home: Path, tmp_path: Path) -> None:
    other = EmbeddedServer.attach(tmp_path / "other")
    home.mkdir()
    (home / "valkey.sock").symlink_to(tmp_path / "other" / "valkey.sock")
    shutil.copy(tmp_path / "other" / "valkey.pid", home)  # as a copy of a directory in use would have it

    server = EmbeddedServer.attach(home)
    assert server.started_here and server.pid != other.pid

    server.detach()
    assert is_alive(other.pid) and get(other.url, "anything") is None


def test_a_server_whose_directory_was_deleted_does_not_outlive_its_holder(home: Path) -> None:
    ghost = EmbeddedServer.attach(home)
    shutil.rmtree(home)
    reborn = EmbeddedServer.attach(home)
    assert reborn.started_here and reborn.pid != ghost.pid

    ghost.detach()

    assert is_gone(ghost.pid)
    assert get(reborn.url, "anything") is None


def test_a_torn_append_only_file_loses_only_its_tail(home: Path) -> None:
    first = EmbeddedServer.attach(home)
    put(first.url, kept="yes")
    first.detach()
    (torn,) = (home / "data" / "appendonlydir").glob("*.incr.aof")
    with torn.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nlo")

    second = EmbeddedServer.attach(home)

    assert get(second.url, "kept") == "yes"


# --- what cannot be helped is said --------------------------------------------------------------------------


def test_data_of_a_newer_server_is_left_alone_and_its_server_named(home: Path, monkeypatch: MonkeyPatch) -> None:
    server = EmbeddedServer.attach(home)
    put(server.url, kept="yes")
    server.detach()
    (base,) = (home / "data").rglob("*.base.*")
    readable = base.read_bytes()
    base.write_bytes(b"REDIS9999" + readable[9:])
    with (home / "valkey.log").open("a") as log:
        log.write("9:M * Valkey version=99.1.2, bits=64, just started\n")

    with pytest.raises(Unavailable, match="was written by Valkey 99") as failed:
        EmbeddedServer.attach(home)
    assert "leave the files as they are" in str(failed.value) and "WEFT_SERVER_BINARY" in str(failed.value)
    base.write_bytes(readable)
    assert get(EmbeddedServer.attach(home).url, "kept") == "yes"


def test_a_server_that_fails_to_start_says_why(home: Path) -> None:
    EmbeddedServer.attach(home).detach()
    (manifest,) = (home / "data" / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")

    with pytest.raises(Unavailable) as caught:
        EmbeddedServer.attach(home)

    assert "manifest" in caught.value.message.lower() and str(home) in caught.value.message
    assert not servers_on(home) and not list((home / "holders").iterdir())


def test_a_server_that_refuses_its_configuration_says_why(home: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    odd = wrapped_server(tmp_path / "odd-server", options="--no-such-option 1")
    monkeypatch.setenv("WEFT_SERVER_BINARY", odd)

    with pytest.raises(Unavailable, match="no-such-option"):
        EmbeddedServer.attach(home)


def test_loading_is_waited_for_and_survives_an_impatient_caller(
    home: Path, tmp_path: Path, monkeypatch: MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = EmbeddedServer.attach(home)
    put(first.url, key="x")
    with client(first.url) as connection, connection.pipeline(transaction=False) as pipeline:
        for _ in range(4000):
            pipeline.append("key", "x")
        pipeline.execute()
    first.detach()
    slow = wrapped_server(tmp_path / "slow-server", options="--key-load-delay 200")
    monkeypatch.setenv("WEFT_SERVER_BINARY", slow)

    with pytest.raises(Unavailable, match="still loading") as caught:
        EmbeddedServer.attach(home, timeout=0.5, loading=0)
    (loading,) = servers_on(home)
    monkeypatch.setattr(embedded, "SILENT_SECONDS", 0.0)
    # Both, whoever decides: reading data back is no reason to give up.
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(EmbeddedServer.attach, home, timeout=0.1) for _ in range(2)]
        server, other = (one.result() for one in both)
    other.detach()

    assert caught.value.retryable
    assert server.pid == loading.pid and get(server.url, "key") == "x" * 4001
    assert caplog.text.count("the embedded store is reading back 0 MB of data") == 1


def test_a_lock_held_too_long_is_said(home: Path) -> None:
    EmbeddedServer.attach(home).detach()

    with (home / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="starting or stopping"):
            EmbeddedServer.attach(home, timeout=0.1)


def test_a_file_in_the_directorys_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match="cannot keep its server in") as caught:
            EmbeddedServer.attach(wrong)
        assert str(wrong) in caught.value.message


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    # The superuser may write anywhere but into the kernel's own file systems.
    closed = tmp_path / "closed" if os.geteuid() else Path("/sys/kernel")
    if os.geteuid():
        closed.mkdir(mode=0o500)
    elif not closed.is_dir():
        pytest.skip("no directory here is closed to the superuser")

    with pytest.raises(SettingsError, match="can write to"):
        EmbeddedServer.attach(closed / "weft")


# --- paths --------------------------------------------------------------------------------------------------


def test_a_very_long_directory_works(home: Path) -> None:
    deep = home.joinpath(*["a-rather-long-name"] * 10)

    first = EmbeddedServer.attach(deep)
    put(first.url, kept="yes")
    path = Path(first.url.removeprefix("unix://"))

    assert len(str(deep)) > 190 and len(str(path)) <= embedded.MAX_SOCKET_PATH_BYTES
    assert path.parent.stat().st_mode & 0o777 == 0o700 and path.parent.stat().st_uid == os.geteuid()
    first.detach()
    assert not path.exists()
    second = EmbeddedServer.attach(deep)
    assert second.url == first.url and get(second.url, "kept") == "yes"


def test_a_very_long_directory_is_shared_by_processes_with_another_tmpdir(
    home: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    deep = home.joinpath(*["a-rather-long-name"] * 10)
    first = EmbeddedServer.attach(deep)
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded, "MAX_SOCKET_PATH_BYTES", len(str(tmp_path)) + 40)

    second = EmbeddedServer.attach(deep, timeout=1)

    assert (second.url, second.pid) == (first.url, first.pid)


def test_a_socket_folder_made_by_another_is_refused(home: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    trap = tmp_path / f"weft-{os.geteuid()}"
    trap.mkdir(mode=0o755)
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded, "MAX_SOCKET_PATH_BYTES", len(str(trap)) + 22)

    with pytest.raises(SettingsError, match="private"):
        EmbeddedServer.attach(home / ("x" * 60))


def test_a_directory_may_have_any_name(home: Path) -> None:
    home.mkdir()
    odd = home / 'a "q" #%20\n\\ü'

    server = EmbeddedServer.attach(odd)
    put(server.url, kept="yes")
    server.detach()

    assert (odd / "data" / "appendonlydir").is_dir() and is_gone(server.pid)


def test_a_relative_or_linked_directory_is_the_same_directory(home: Path, monkeypatch: MonkeyPatch) -> None:
    server = EmbeddedServer.attach(home)
    (home.parent / "link").symlink_to(home)
    monkeypatch.chdir(home.parent)

    assert EmbeddedServer.attach(Path("link")).pid == EmbeddedServer.attach(Path("w")).pid == server.pid
