"""The families of keys that archiving has."""

from __future__ import annotations

from weft.store.family import Lifetime, declare

declare(
    "archived",
    type="hash",
    holds="How far the log is archived. While it is there, only the archiver trims the log.",
    lifetime=Lifetime.FOREVER,
    owner="store/archived",
    inspect="HGETALL",
    fields={
        "database": "id of the database; an archiver of another one refuses to go on",
        "name": "its URL, without a password",
        "entry": "the last log entry that is archived",
        "indexed": "the last log entry whose runs have their rows: the log is trimmed up to there",
        "passed": "how many of all entries ever added that makes",
        "at": "when it was noted, in ms",
        "whole": "`1`: no entry went before it was archived, so the archive knows of every run of the store",
    },
)
