"""Where an app keeps its store and its database: folders with odd names, and processes that change their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft import Weft
from weft.archive.address import Address
from weft.engine.cold import database_address


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_REDIS_URL", "WEFT_DATABASE_URL", "WEFT_DATA"):
        monkeypatch.delenv(name, raising=False)


async def test_a_folder_of_any_name_holds_the_store_and_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually
) -> None:
    place = tmp_path / "what? 100% #1 é%20"
    place.mkdir()
    monkeypatch.chdir(place)
    app = Weft("odd")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(archive=True):
        assert await (await double.enqueue(21)).result(timeout=10) == 42
        await eventually((place / ".weft" / "archive.sqlite").exists)
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


@pytest.mark.parametrize("url", ["", "sqlite:///mine.sqlite"])
def test_another_process_finds_the_same_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    place = tmp_path / "what?" if not url else tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    here = Address.parse(url) if url else Address.default(Path(".weft"))

    monkeypatch.chdir("/")
    for name, value in here.environ.items():
        monkeypatch.setenv(name, value)

    assert database_address(None).path == here.path


@pytest.mark.parametrize("url", [None, "sqlite:///mine.sqlite"])
async def test_a_process_that_changes_its_folder_stays_with_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    app = Weft("moving", database_url=url)

    @app.task
    def move() -> str:
        os.chdir(other)
        return add.delay(1, 2).id  # by a loop that is new, with an engine of its own

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    async with app, app.worker(archive=True):
        database = app.database()
        made = await (await move.enqueue()).result(timeout=10)
        assert await add.run(made).result(timeout=10) == 3
        assert app.database() == database
    app.portal.close()
    app.release()
    async with app, app.worker(archive=True):
        assert await add.run(made).result(timeout=10) == 3
    assert not list(other.iterdir())


def test_a_tilde_in_the_data_directory_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WEFT_DATA", "~/weft")
    app = Weft("home")

    assert app.url() == f"unix://{tmp_path}/weft/valkey.sock"
    assert app.database().path == tmp_path / "weft" / "archive.sqlite"
    app.release()
