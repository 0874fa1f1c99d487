"""Stored texts command no terminal: what would is spelled out, wherever the command line shows it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import pytest

from weft.cli import output
from weft.cli.follow import print_event
from weft.core.model import Event
from weft.telemetry import PlainFormatter, get_logger
from weft.terminal import visible

EVIL = "\x1b]0;owned\x07 red \x1b[31m \x9b2J back\x08 \x7f"
SPELLED = r"\x1b]0;owned\x07 red \x1b[31m \x9b2J back\x08 \x7f"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert visible(EVIL) == SPELLED
    assert visible("lines\n\tand ünïcode 😀 stay") == "lines\n\tand ünïcode 😀 stay"


def test_tables_fields_events_and_talk_show_it_spelled(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["error", "tags"], [(EVIL, {"a": EVIL})])
    output.print_fields([("error", EVIL)])
    output.say(EVIL)
    output.show(EVIL)
    output.complain(ValueError(EVIL))
    error = {"type": "E", "message": EVIL}
    print_event(
        Event(run_id="r0-x", seq=1, type="failed", step="", at=datetime.now(UTC), data={"error": error}), json=False
    )

    shown = "".join(capsys.readouterr())
    assert shown.count(SPELLED) == 7
    assert not any(character in shown for character in "\x1b\x07\x08\x7f\x9b")


def test_json_says_the_same_value_without_the_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"error": EVIL})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"error": EVIL}
    assert not any(character in shown for character in "\x1b\x07\x08\x7f\x9b")


def test_the_log_of_a_worker_spells_it_and_leaves_user_lines_alone(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("weft.worker").warning("a run failed", error=EVIL)
    logging.getLogger("mine").warning("\x1b[32mgreen")
    own, theirs = (PlainFormatter().format(record) for record in caplog.records)
    assert SPELLED in own and "\x1b" not in own
    assert "\x1b[32mgreen" in theirs
