"""Starts that stand in the database before the store is told of them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "weft_starts",
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("partition", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("claim_ms", sa.BigInteger, nullable=False),
        sa.Column("same", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("tried_ms", sa.BigInteger, nullable=False),
        sa.Column("life", sa.Text, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("more", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "partition", "run"),
    )
    claimed = sa.text("claim <> ''")
    op.create_index(
        "weft_starts_by_claim",
        "weft_starts",
        ["namespace", "claim"],
        unique=True,
        sqlite_where=claimed,
        postgresql_where=claimed,
    )
