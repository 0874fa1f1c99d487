"""`weft server` and `weft approvals link`: real processes, from making a link to deciding by its page."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from cli_project import PATIENCE, Project, until

from weft.cli import output

TASKS = """
from weft import Weft

app = Weft("shop")
refund = app.graph("refund", output="${review.decision}")
refund.approval("review", title="Refund order ${input.order}?", show="${input}", approvers=["anna"])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("shop"), tasks=TASKS, WEFT_PUBLIC_URL="https://weft.example.com/shop/")
    made.start("worker")
    yield made
    made.close()


def test_a_link_is_made_opened_and_decides(project: Project) -> None:
    started = project.start("server", "--port", "0")
    base = started.wait_for(r"ready\b.*url=(http://127\.0\.0\.1:\d+)")[0][1]
    run = project.weft("run", "refund", "order=o-7", "--json").document["id"]
    id = f"{run}/review"
    until(lambda: project.weft("approvals", "ls", "--json").documents)

    made = project.weft("approvals", "link", id, "--approver", "anna", "--decision", "approve", "--json").document
    assert made["url"] == f"https://weft.example.com/shop/approvals/links/{made['link']}"
    plain = project.weft("approvals", "link", id, "--approver", "anna", "--decision", "reject", "--expires", "1h")
    assert re.fullmatch(r"https://weft\.example\.com/shop/approvals/links/[\w.-]+\n", plain.out)
    bare = project.weft("approvals", "link", id, "--approver", "anna", "--decision", "reject", WEFT_PUBLIC_URL="")
    assert re.fullmatch(r"[\w-]+\.[\w-]+\n", bare.out) and "WEFT_PUBLIC_URL" in bare.err
    project.weft("approvals", "link", id, "--approver", "zoe", "--decision", "approve", code=output.USAGE)

    page = f"{base}/approvals/links/{made['link']}"
    with urlopen(page) as shown:
        assert b"Refund order o-7?" in shown.read()
    asked = Request(page, data=b"comment=fine", headers={"Content-Type": "application/x-www-form-urlencoded"})
    with urlopen(asked) as told:
        assert b"anna has approved this" in told.read()
    votes = project.weft("approvals", "show", id, "--json").document["votes"]
    assert (votes[0]["via"], votes[0]["comment"]) == ("link:127.0.0.1", "fine")
    with pytest.raises(HTTPError) as refused:
        urlopen(page[:-4] + "AAAA")
    assert refused.value.code == 403
    refused.value.close()

    # An open connection that says nothing keeps nobody from stopping.
    with socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2]))):
        began = time.monotonic()
        started.signal(signal.SIGTERM)
        assert started.wait() == 0 and "stopped" in started.text
        assert time.monotonic() - began < 5
    assert made["link"] not in started.text and "Traceback" not in started.text


def test_its_address_is_printed_as_json_and_its_options_have_twins(project: Project) -> None:
    env = {**project.env, "WEFT_SERVER_PORT": "0", "WEFT_SERVER_JSON": "1"}
    command = [sys.executable, "-m", "weft", "server"]
    with subprocess.Popen(
        command, cwd=project.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["pid"] == process.pid
        with urlopen(told["url"] + "/healthz") as health:
            assert health.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == b""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--host", "0.0.0.0"], output.USAGE, "reverse proxy"),
        (["--host", "no-such-host.invalid"], output.USAGE, "no address of this machine"),
        (["--forwarded-allow-ips", "*"], output.USAGE, "addresses and networks of proxies"),
    ],
)
def test_what_it_does_not_serve_on_is_refused(project: Project, words: list[str], code: int, said: str) -> None:
    assert said in project.weft("server", *words, code=code).err


def test_settings_that_cannot_be_used_are_told_at_the_start(project: Project) -> None:
    for name, value in (("WEFT_PUBLIC_URL", "weft.example.com"), ("WEFT_SECRET_KEY", "short")):
        assert name in project.weft("server", "--port", "0", code=output.USAGE, **{name: value}).err


def test_a_port_that_is_taken_is_told(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = project.weft("server", "--port", port, code=output.UNAVAILABLE)
    assert f"port {port} of 127.0.0.1 is taken" in done.err and "--port" in done.err


def test_it_starts_while_the_store_is_away(tmp_path: Path) -> None:
    project = Project(tmp_path, tasks=TASKS, WEFT_REDIS_URL="redis://127.0.0.1:1/0")
    try:
        started = project.start("server", "--port", "0", ready=None)
        base = started.wait_for(r"ready\b.*url=(\S+)")[0][1]
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{base}/readyz")
        assert refused.value.code == 503
        refused.value.close()
        started.signal(signal.SIGTERM)
        assert started.wait() == 0
    finally:
        project.close()
