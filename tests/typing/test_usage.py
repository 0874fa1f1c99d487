"""The typed-usage file holds under mypy in strict mode: what people write has the types they expect."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USAGE = Path(__file__).with_name("usage.py")


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_typed_usage_holds_and_every_wrong_line_is_refused() -> None:
    # What else may be wrong in the package is `make check`'s business.
    done = mypy("--follow-imports=silent", str(USAGE))

    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_lines_are_among_the_usage() -> None:
    wrong = re.findall(r"type: ignore\[([a-z-]+)\]", USAGE.read_text())

    assert wrong.count("arg-type") >= 5
    assert wrong.count("call-arg") >= 5


def test_the_package_says_that_it_is_typed() -> None:
    import weft

    assert Path(weft.__file__).with_name("py.typed").exists()
