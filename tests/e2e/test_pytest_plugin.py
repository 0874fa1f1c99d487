"""The pytest plugin in a project of somebody else: an app in a module, plain and async tests, no plugin but ours."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import weft

SHOP = """
from weft import Weft

app = Weft("shop")

@app.task(retries=2, retry_delay="1h", max_delay="1d")
async def charge(amount: int) -> str:
    return f"charged {amount}"
"""

TESTS = """
import asyncio
import shop

def test_plain(weft_app, weft_worker):
    assert weft_app is shop.app
    run = shop.charge.options(delay="1d").sync.enqueue(5)
    assert weft_worker.sync.run_until_idle() == []
    (ran,) = weft_worker.sync.run_until_idle(advance=True)
    assert (ran.name, ran.outcome) == ("charge", "completed")
    assert run.sync.result(timeout=10) == "charged 5"

def test_each_test_begins_with_an_empty_store(weft_app):
    assert weft_app.runs.sync.list() == []

def test_a_loop_of_its_own(weft_app, weft_worker):
    async def scenario():
        run = await shop.charge.enqueue(7)
        await weft_worker.run_until_idle()
        return await run.result(timeout=10)

    assert asyncio.run(scenario()) == "charged 7"
"""

ASYNC_TESTS = """
import shop

async def test_async(weft_app, weft_worker):
    run = await shop.charge.enqueue(6)
    await weft_worker.run_until_idle()
    assert await run.result(timeout=10) == "charged 6"
"""


CRASH_TESTS = """
import shop

def test_it_survives(crash_everywhere):
    died = crash_everywhere(lambda: shop.charge.sync.enqueue(5), each=1, duplicates=False)
    assert died == [
        f"{when}:{call}:1" for call in ("claim_steps", "commit_steps") for when in ("before", "after")
    ]

def test_what_does_not_hold_is_found(crash_everywhere):
    def check(run):
        assert run.sync.result(timeout=10) == "charged 5"
        check.n += 1
        assert check.n < 3

    check.n = 0
    crash_everywhere(lambda: shop.charge.sync.enqueue(5), check, calls=["commit_steps"], each=1, duplicates=False)
"""


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in a project. The plugin is named where it is not installed by its entry point."""
    installed = any(point.name == "weft.testing.plugin" for point in entry_points(group="pytest11"))
    named = [] if installed else ["-p", "weft.testing.plugin"]
    source = str(Path(weft.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-W", "error", *named, *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project), "PYTHONPATH": f"{project}:{source}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "pytest.ini").write_text("[pytest]\nweft_app = shop:app\n")
    return tmp_path


def test_plain_tests_need_no_other_plugin(project: Path) -> None:
    (project / "test_shop.py").write_text(TESTS)

    done = run_pytest(project, "-p", "no:asyncio")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert not (project / ".weft").exists()


def test_async_tests_run_beside_them(project: Path) -> None:
    (project / "test_shop.py").write_text(TESTS + ASYNC_TESTS)

    done = run_pytest(project, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_worker_may_die_at_every_boundary_of_a_scenario(project: Path) -> None:
    (project / "test_shop.py").write_text(CRASH_TESTS)

    done = run_pytest(project, "-p", "no:asyncio")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "the worker was to die at after:commit_steps:1" in done.stdout


def test_those_who_use_no_fixture_pay_nothing(project: Path) -> None:
    (project / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert not {'redis', 'msgspec', 'weft.errors', 'weft.sdk', 'weft.store'} & set(sys.modules)\n"
    )

    done = run_pytest(project, "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest", "-o", "weft_app=")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere:app", "there is no such app"), ("shop:charge", "not a Weft app")]
)
def test_an_app_that_is_not_there_is_a_usage_error(project: Path, target: str, message: str) -> None:
    (project / "test_shop.py").write_text("def test_it(weft_app): ...\n")

    done = run_pytest(project, "-p", "no:asyncio", "-o", f"weft_app={target}")

    assert done.returncode == 1
    assert message in done.stdout
