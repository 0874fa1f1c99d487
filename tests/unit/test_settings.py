"""Settings are read strictly."""

from __future__ import annotations

import pytest

from weft.errors import SettingsError
from weft.settings import read_setting


@pytest.mark.parametrize("wrong", ["0%", "101%", "2gb", "x%", "90"])
def test_a_share_of_memory_that_makes_no_sense_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_MEMORY", wrong)
    with pytest.raises(SettingsError, match="WEFT_MAX_MEMORY"):
        read_setting("WEFT_MAX_MEMORY")
    monkeypatch.setenv("WEFT_MAX_MEMORY", "75%")
    assert read_setting("WEFT_MAX_MEMORY") == 0.75
