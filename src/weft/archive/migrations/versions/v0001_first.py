"""The first tables. Written out, not taken from tables.py: a migration must not change when the tables do."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in names]


def upgrade() -> None:
    op.create_table(
        "weft_runs",
        *_text("namespace", "born", "id", "kind", "name", "queue", "status"),
        *_numbers(
            "seq", "spec_seq", "attempt", "delivery", "crashes", "created_ms", "started_ms", "ended_ms", "due_ms"
        ),
        *_numbers("deadline_ms", "keep_ms"),
        *_text("progress", "worker"),
        *_numbers("gap"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("weft_runs_by_time", "weft_runs", ["namespace", "born"])
    op.create_table("weft_tags", *_text("run", "name", "value"), sa.PrimaryKeyConstraint("run", "name"))
    op.create_index("weft_tags_by_value", "weft_tags", ["name", "value", "run"])
    op.create_table(
        "weft_steps",
        *_text("run", "step", "name", "status"),
        *_numbers("attempt", "created_ms", "started_ms", "ended_ms", "seq"),
        sa.PrimaryKeyConstraint("run", "step"),
    )
    op.create_table(
        "weft_events",
        *_text("run"),
        *_numbers("seq"),
        *_text("entry", "type"),
        *_numbers("at_ms"),
        *_text("by", "facts"),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run", "seq", "entry"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "weft_blobs",
        *_text("digest"),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "weft_gaps",
        *_text("namespace"),
        *_numbers("partition"),
        *_text("entry", "run"),
        sa.Column("raw", sa.LargeBinary, nullable=False),
        *_text("error"),
        sa.PrimaryKeyConstraint("namespace", "partition", "entry", "run"),
    )
    op.create_table(
        "weft_checkpoints",
        *_text("namespace"),
        *_numbers("partition"),
        *_text("entry"),
        *_numbers("at_ms"),
        sa.PrimaryKeyConstraint("namespace", "partition"),
    )
    facts = op.create_table("weft_facts", *_text("name", "value"), sa.PrimaryKeyConstraint("name"))
    op.bulk_insert(facts, [{"name": "database", "value": uuid.uuid4().hex}])
