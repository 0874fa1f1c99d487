"""How far blocks are indexed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("weft_checkpoints", sa.Column("indexed", sa.Text, nullable=False, server_default=""))
    op.add_column("weft_checkpoints", sa.Column("indexed_block", sa.BigInteger, nullable=False, server_default="0"))
    # Until now whatever was kept was indexed with it.
    op.execute("UPDATE weft_checkpoints SET indexed = entry, indexed_block = block")
