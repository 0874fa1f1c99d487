"""Which app a command is about: typed, exported, or written in pyproject.toml; and what is said when it is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_project import Project

from weft.cli.target import TargetBroken, find_target, load, load_app
from weft.errors import SettingsError
from weft.settings import read_setting

APP = "from weft import Weft\napp = Weft('{}')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory that is the current one; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DATA", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def module(here: Path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        (here / f"{name}.py").write_text(text)

    return write


def test_a_typed_target_wins_over_pyproject(here: Path, module: Callable[[str, str], None]) -> None:
    module("typed", APP.format("typed"))
    (here / "pyproject.toml").write_text('[tool.weft]\napp = "written:app"\n')
    app, place = load_app("typed:app")
    assert (app.name, place.source) == ("typed", "the command line")


def test_an_exported_target_is_told_as_such(
    here: Path, module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_APP", "exported:app")
    module("exported", APP.format("exported"))
    # The command line hands the variable over as if it were typed.
    app, place = load_app("exported:app")
    assert (app.name, place.source) == ("exported", "WEFT_APP")


def test_the_nearest_pyproject_counts_and_its_directory_can_be_imported_from(
    here: Path, module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("written", APP.format("written"))
    (here / "pyproject.toml").write_text('[tool.weft]\napp = "written:app"\n')
    (here / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(here / "deep" / "down")
    app, place = load_app(None)
    assert app.name == "written" and place.root == here
    assert read_setting("WEFT_DATA") == str(here / ".weft"), "the store that a worker started up there serves"
    monkeypatch.setenv("WEFT_DATA", "elsewhere")
    load_app(None)
    assert read_setting("WEFT_DATA") == "elsewhere"

    (here / "deep" / "pyproject.toml").write_text("[project]\n")
    assert find_target(None) is None, "the nearest one says nothing, and no other is asked"
    with pytest.raises(SettingsError, match="no app is named"):
        load_app(None)


@pytest.mark.parametrize(
    ("table", "said"),
    [("[tool.weft]\napp = 'a:app'\nqueues = 'high'\n", "there is queues"), ("[tool]\nweft = 3\n", "there is 3")],
)
def test_what_is_written_in_pyproject_and_does_nothing_is_refused(here: Path, table: str, said: str) -> None:
    (here / "pyproject.toml").write_text(table)
    with pytest.raises(SettingsError, match=said):
        find_target(None)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "not of the form module:app, such as shop:app"),
        ("./sub/shop.py:app", "such as sub.shop:app"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop:other", r"other is not there in .*shop.py; it holds shop:app"),
        ("shop:number", "number is a int, not a Weft app"),
    ],
)
def test_a_wrong_target_is_explained(target: str, said: str, module: Callable[[str, str], None]) -> None:
    module("shop", APP.format("shop") + "number = 3\n")
    place = find_target(target)
    assert place is not None
    with pytest.raises(SettingsError, match=said):
        load(place)


def test_an_error_in_user_code_is_shown_with_its_own_frames_only(
    here: Path, module: Callable[[str, str], None]
) -> None:
    module("broken", "import helper\n")
    module("helper", "1 / 0\n")
    place = find_target("broken:app")
    assert place is not None
    with pytest.raises(TargetBroken) as caught:
        load(place)
    lines = caught.value.message.splitlines()
    assert lines[0] == "importing broken failed:" and lines[-1].startswith("ZeroDivisionError: ")
    assert [line.strip() for line in lines if "File" in line] == [
        f'File "{here}/broken.py", line 1, in <module>',
        f'File "{here}/helper.py", line 1, in <module>',
    ]


def test_a_missing_module_of_user_code_is_not_taken_for_the_target(module: Callable[[str, str], None]) -> None:
    module("needy", "import not_installed\n")
    place = find_target("needy:app")
    assert place is not None
    with pytest.raises(TargetBroken, match="No module named 'not_installed'"):
        load(place)


def test_the_exit_codes_tell_a_wrong_target_from_broken_code(tmp_path: Path) -> None:
    project = Project(tmp_path, tasks="raise RuntimeError('sorry')\n")
    assert "RuntimeError: sorry" in project.weft("worker", code=1).err
    assert "there is no module 'nowhere'" in project.weft("worker", code=2, WEFT_APP="nowhere:app").err
    assert not (tmp_path / ".weft").exists(), "no store is started for an app that is not there"
