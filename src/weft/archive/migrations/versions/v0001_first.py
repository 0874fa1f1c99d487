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


def _bytes(*names: str) -> list[sa.Column[bytes]]:
    return [sa.Column(name, sa.LargeBinary, nullable=False) for name in names]


def upgrade() -> None:
    op.create_table(
        "weft_runs",
        *_text("namespace", "born", "id", "kind", "name", "queue", "status"),
        *_numbers("seq", "created_ms", "started_ms", "ended_ms", "claims_ms", "gap"),
        *_text("blocks"),
        *_bytes("rest", "spec", "value"),
        sa.PrimaryKeyConstraint("namespace", "born", "id"),
        sqlite_with_rowid=False,
    )
    op.create_index("weft_runs_by_name", "weft_runs", ["namespace", "name", "born"])
    unfinished = sa.text("status <> 'completed'")
    op.create_index(
        "weft_runs_by_status",
        "weft_runs",
        ["namespace", "status", "born"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    claims = sa.text("claims_ms > 0")
    op.create_index(
        "weft_runs_by_claims", "weft_runs", ["namespace", "claims_ms"], sqlite_where=claims, postgresql_where=claims
    )
    op.create_table(
        "weft_settings",
        *_text("namespace"),
        *_numbers("partition"),
        *_text("kind", "name"),
        *_bytes("data"),
        sa.PrimaryKeyConstraint("namespace", "partition", "kind", "name"),
    )
    op.create_table("weft_tags", *_text("run", "name", "value"), sa.PrimaryKeyConstraint("run", "name"))
    op.create_index("weft_tags_by_value", "weft_tags", ["name", "value", "run"])
    op.create_table(
        "weft_steps",
        *_text("run", "step", "name", "status"),
        *_numbers("attempt", "created_ms", "started_ms", "ended_ms", "seq"),
        sa.PrimaryKeyConstraint("run", "step"),
    )
    op.create_table(
        "weft_blocks",
        *_text("namespace"),
        *_numbers("partition", "number"),
        *_bytes("data"),
        sa.PrimaryKeyConstraint("namespace", "partition", "number"),
    )
    op.create_table(
        "weft_places", *_text("run"), *_numbers("upto"), *_text("blocks"), sa.PrimaryKeyConstraint("run", "upto")
    )
    op.create_table(
        "weft_blobs",
        *_text("digest"),
        *_bytes("data"),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "weft_gaps",
        *_text("namespace"),
        *_numbers("partition"),
        *_text("entry", "run"),
        *_bytes("raw"),
        *_text("error"),
        sa.PrimaryKeyConstraint("namespace", "partition", "entry", "run"),
    )
    op.create_table(
        "weft_checkpoints",
        *_text("namespace"),
        *_numbers("partition"),
        *_text("entry"),
        *_numbers("block", "at_ms", "epoch", "recovering"),
        *_text("holder"),
        *_numbers("until_ms"),
        sa.PrimaryKeyConstraint("namespace", "partition"),
    )
    facts = op.create_table("weft_facts", *_text("name", "value"), sa.PrimaryKeyConstraint("name"))
    op.bulk_insert(facts, [{"name": "database", "value": uuid.uuid4().hex}])
