"""The page in a real browser, Chromium, on a desk and on a phone, in light and dark."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Ask, PageOf

from weft import Weft

#: Seconds in which a machine that has no browser may get one.
INSTALL_S = 300

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
FORM = {
    "type": "object",
    "required": ["amount", "why"],
    "properties": {
        "amount": {"type": "number", "maximum": 120},
        "why": {"enum": ["damaged", "late"]},
        "tell": {"type": "boolean", "default": True},
    },
}


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser on PATH; on a machine of Debian's kind that lets us, one is installed first."""
    if not _chromium() and shutil.which("apt-get") and os.geteuid() == 0:
        install = "apt-get update && apt-get install -y --no-install-recommends chromium"
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        # The tests run in several processes, and apt-get turns away whoever comes while another is at it.
        with open(Path(tempfile.gettempdir()) / "weft-tests-chromium.lock", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not _chromium():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        ["sh", "-c", install], check=False, env=env, stdin=subprocess.DEVNULL, timeout=INSTALL_S
                    )
    return _chromium() or pytest.skip("no Chromium on PATH: `apt-get install chromium`, as root, brings one")


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        await started.close()


async def test_a_person_fills_in_the_form_mends_it_and_approves(
    app: Weft, ask: Ask, url: str, page_of: PageOf, browser: Any
) -> None:
    one = await ask(
        {"amount": 89.5, "note": "x" * 300, "<b>deep</b>": {"a": ["<script>alert(1)</script>"] * 3}}, form=FORM
    )
    told: list[str] = []
    for viewport, scheme in ((PHONE, "dark"), (DESK, "light")):
        context = await browser.new_context(viewport=viewport, color_scheme=scheme)
        page = await context.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("dialog", lambda dialog: told.append("a script ran"))
        await page.goto(url + await page_of(one))
        look = await page.evaluate(
            "[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('button')).borderRadius]"
        )
        # Nothing hangs over the edge, and the stylesheet is the one that the policy lets in.
        assert look[0] <= viewport["width"] and look[2] == "10px"
        assert look[1] == ("rgb(15, 17, 21)" if scheme == "dark" else "rgb(244, 245, 247)")

    assert await page.get_by_label("amount").input_value() == "89.5"
    await page.get_by_role("button", name="Approve").click()  # the browser itself asks for what is needed
    assert (await app.approvals.get(one.id)).status == "pending"
    await page.get_by_label("amount").fill("500")
    await page.get_by_label("why").select_option("late")
    await page.get_by_label("Comment").fill("first\nsecond")
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_text("must be at most 120").wait_for()
    assert await page.get_by_label("Comment").input_value() == "first\nsecond"
    await page.get_by_label("amount").fill("60")
    await page.get_by_role("button", name="Approve").dblclick()
    await page.get_by_text("anna has approved this").wait_for()

    after = await app.approvals.get(one.id)
    assert after.votes[0]["form"] == {"amount": 60, "why": "late", "tell": True}
    assert (after.status, after.votes[0]["comment"]) == ("approved", "first\nsecond")
    assert [text for text in told if "422" not in text] == []


async def test_a_page_of_another_site_can_neither_frame_it_nor_press_its_button(
    app: Weft, ask: Ask, url: str, page_of: PageOf, browser: Any
) -> None:
    one = await ask()
    link = url + await page_of(one)
    other = await browser.new_page()
    await other.set_content(
        f"<form method=post action='{link}'><button>win</button></form><iframe src='{link}'></iframe>"
    )
    framed = [frame async for frame in _texts(other)]
    await other.get_by_role("button", name="win").click()
    await other.get_by_text("page of another site").wait_for()
    assert not any("Refund" in text for text in framed)
    assert (await app.approvals.get(one.id)).votes == []


async def _texts(page: Any) -> AsyncIterator[str]:
    for frame in page.frames[1:]:
        yield await frame.content()
