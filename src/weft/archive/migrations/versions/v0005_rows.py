"""Versions of definitions and their tags, patches, approvals, what was done to dead letters, the audit; timings of steps."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in names]


def _bytes(*names: str) -> list[sa.Column[bytes]]:
    return [sa.Column(name, sa.LargeBinary, nullable=False) for name in names]


def upgrade() -> None:
    for name in ("queued_ms", "running_ms", "waiting_ms", "since_ms"):
        op.add_column("weft_steps", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "weft_definitions",
        *_text("namespace", "name", "digest", "version"),
        *_numbers("first_ms"),
        *_text("run", "actor"),
        sa.PrimaryKeyConstraint("namespace", "name", "digest"),
    )
    op.create_index("weft_definitions_by_age", "weft_definitions", ["namespace", "name", "first_ms"])
    op.create_table(
        "weft_definition_tags",
        *_text("namespace", "name", "tag", "digest"),
        *_numbers("position", "at_ms"),
        *_text("actor"),
        sa.PrimaryKeyConstraint("namespace", "name", "tag"),
    )
    op.create_table(
        "weft_definition_moves",
        *_text("namespace", "name", "tag"),
        *_numbers("position"),
        *_text("digest"),
        *_numbers("at_ms"),
        *_text("actor", "reason"),
        sa.PrimaryKeyConstraint("namespace", "name", "tag", "position"),
    )
    op.create_table(
        "weft_patches",
        *_text("namespace", "run"),
        *_numbers("seq", "revision", "undoes", "at_ms"),
        *_text("author", "reason", "definition", "previous"),
        *_bytes("operations"),
        sa.PrimaryKeyConstraint("namespace", "run", "seq"),
    )
    op.create_index("weft_patches_by_author", "weft_patches", ["namespace", "author", "at_ms"])
    op.create_table(
        "weft_approvals",
        *_text("namespace", "run", "step"),
        *_numbers("seq", "opened_ms"),
        *_text("title", "digest", "status"),
        *_numbers("decided_ms"),
        *_text("decided_by", "via"),
        *_bytes("asked", "decision"),
        sa.PrimaryKeyConstraint("namespace", "run", "step", "seq"),
    )
    op.create_index("weft_approvals_by_age", "weft_approvals", ["namespace", "opened_ms"])
    op.create_table(
        "weft_letters",
        *_text("namespace", "run", "replayed_as", "investigated_by", "note"),
        *_numbers("at_ms", "purged_ms"),
        sa.PrimaryKeyConstraint("namespace", "run"),
    )
    op.create_table(
        "weft_audit",
        *_text("namespace"),
        *_numbers("chain", "number"),
        *_text("source"),
        *_numbers("at_ms"),
        *_text("actor", "via", "action", "object", "before", "after", "reason"),
        *_bytes("detail"),
        *_text("run", "hash"),
        sa.PrimaryKeyConstraint("namespace", "chain", "number"),
    )
    op.create_index("weft_audit_by_source", "weft_audit", ["namespace", "chain", "source"], unique=True)
    for column in ("at_ms", "actor", "object"):
        op.create_index(f"weft_audit_by_{column.partition('_')[0]}", "weft_audit", ["namespace", column])
    op.create_table(
        "weft_audit_heads",
        *_text("namespace"),
        *_numbers("chain", "number"),
        *_text("hash"),
        sa.PrimaryKeyConstraint("namespace", "chain"),
    )
