"""Ballots: votes that stand in the database before the store is told of them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def upgrade() -> None:
    op.create_table(
        "weft_ballots",
        *_text("namespace"),
        _number("partition"),
        *_text("run", "step"),
        _number("number"),
        _number("opened_ms"),
        *_text("digest", "life", "actor", "decision"),
        _number("at_ms"),
        *_text("comment", "via", "request"),
        sa.Column("form", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "partition", "run", "step", "number"),
    )
