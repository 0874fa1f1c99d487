"""The wheel works for somebody who has nothing but the wheel: installed outside of the repository, in an empty home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    os.environ.get("WEFT_TEST_OFFLINE") == "1", reason="WEFT_TEST_OFFLINE=1: installing needs a package index"
)


def run(command: list[str], *, cwd: Path, home: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a command as a newcomer would: an empty home, no settings of ours."""
    ours = ("WEFT_", "PYTEST_", "PYTHON", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment = clean | {"HOME": str(home), "PIP_NO_COMPILE": "no"}
    return subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=timeout, check=False
    )


def pip(python: str, *arguments: str, cwd: Path, home: Path) -> None:
    """Runs pip; a failure says plainly that a package index is needed."""
    done = run([python, "-m", "pip", "--disable-pip-version-check", *arguments], cwd=cwd, home=home)
    if done.returncode:
        pytest.fail(
            f"pip {' '.join(arguments)} failed. It needs a package index or PIP_FIND_LINKS; set WEFT_TEST_OFFLINE=1 to leave"
            f" this test out where there is none.\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, empty_home: Path) -> Path:
    """The wheel, built from a copy of the sources, so that nothing is left in the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    out = tmp_path_factory.mktemp("dist")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(out), str(source), cwd=source, home=empty_home)
    (built,) = out.glob("weft-*.whl")
    return built


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory, empty_home: Path) -> str:
    """An interpreter that knows the wheel and its dependencies, and nothing of the repository."""
    place = tmp_path_factory.mktemp("elsewhere")
    made = run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], cwd=place, home=empty_home)
    assert made.returncode == 0, made.stderr
    interpreter = str(place / "venv" / "bin" / "python")
    # By the pip of this environment: another one would be installed for this one call.
    pip(sys.executable, "--python", interpreter, "install", str(wheel), cwd=place, home=empty_home)
    return interpreter


def test_the_wheel_holds_the_scripts_the_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    lua = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/weft/store/lua").rglob("*.lua")}
    assert lua and lua <= set(names)
    assert "weft/py.typed" in names
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    told = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "weft = weft.cli:main" in told
    assert "[pytest11]\nweft.testing.plugin = weft.testing.plugin" in told
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"weft"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_first_program_of_the_readme_runs_from_the_wheel(python: str, empty_home: Path, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    (tmp_path / "first.py").write_text(found[1])

    done = run([python, "first.py"], cwd=tmp_path, home=empty_home, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Hello, world!"
    where = run([python, "-c", "import weft; print(weft.__file__)"], cwd=tmp_path, home=empty_home)
    assert not Path(where.stdout.strip()).is_relative_to(ROOT)


def test_the_quickstart_runs_from_the_wheel(python: str, empty_home: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", ".weft"))
    weft = str(Path(python).with_name("weft"))

    asked = run([weft, "doctor", "--json"], cwd=tmp_path, home=empty_home, timeout=60)
    imported = run(
        [python, "-c", "from examples.quickstart import app; print(len(app.tasks))"], cwd=tmp_path, home=empty_home
    )

    assert asked.returncode == 0, asked.stderr
    assert imported.returncode == 0 and int(imported.stdout) > 0, imported.stderr
