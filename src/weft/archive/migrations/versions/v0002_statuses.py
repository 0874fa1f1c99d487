"""The status of work elsewhere."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "weft_statuses",
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("partition", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("moment", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("parent", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("seen", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "partition", "moment", "number"),
    )
    op.create_index("weft_statuses_by_task", "weft_statuses", ["namespace", "task", "moment", "number"])
    child = sa.text("parent <> ''")
    op.create_index(
        "weft_statuses_by_parent",
        "weft_statuses",
        ["namespace", "parent", "task"],
        sqlite_where=child,
        postgresql_where=child,
    )
