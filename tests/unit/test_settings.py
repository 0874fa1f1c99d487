"""Settings are read strictly."""

from __future__ import annotations

import pytest

from weft.errors import SettingsError
from weft.settings import read_setting, unknown, unreadable


@pytest.mark.parametrize("wrong", ["0%", "101%", "2gb", "x%", "90"])
def test_a_share_of_memory_that_makes_no_sense_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_MEMORY", wrong)
    with pytest.raises(SettingsError, match="WEFT_MAX_MEMORY"):
        read_setting("WEFT_MAX_MEMORY")
    monkeypatch.setenv("WEFT_MAX_MEMORY", "75%")
    assert read_setting("WEFT_MAX_MEMORY") == 0.75


def test_an_environment_is_told_what_of_it_is_not_used() -> None:
    environ = {
        "WEFT_LEASE": "abc",
        "WEFT_QUEUES": "high,default",
        "WEFT_CONCURENCY": "5",
        "WEFT_XYZZY": "1",
        "WEFT_PROCESSES": "2",
        "WEFT_SECRET_TOKEN": "t",
        "PATH": "/bin",
    }
    (wrong,) = unreadable(environ)
    assert wrong.startswith("WEFT_LEASE='abc' cannot be used")
    assert unknown(environ, lambda: {"WEFT_PROCESSES", "WEFT_GRACE"}) == [
        "WEFT_CONCURENCY is no setting: did you mean WEFT_CONCURRENCY?",
        "WEFT_XYZZY is no setting",
    ]
