"""An app under test knows nothing of what the project around it has kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import Weft


def test_a_test_does_not_read_the_archive_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEFT_DATABASE_URL", "WEFT_DATA"):
        monkeypatch.delenv(name, raising=False)
    app = Weft("shop")
    theirs = app.database().path
    assert theirs is not None and theirs.is_relative_to(tmp_path)

    with app.testing():
        place = app.database().path
        assert place is not None and not place.is_relative_to(tmp_path) and place.parent.is_dir()
    assert app.database().path == theirs and not place.parent.exists()
