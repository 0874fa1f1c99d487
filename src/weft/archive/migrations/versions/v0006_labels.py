"""Labels in place of tags, in the order of listings; which runs use which blobs; an index for every filter."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def upgrade() -> None:
    op.drop_index("weft_runs_by_status", "weft_runs")
    op.create_index("weft_runs_by_state", "weft_runs", ["namespace", "status", "kind", "born"])
    op.create_table(
        "weft_labels",
        *_text("namespace", "name", "value", "born", "run"),
        sa.PrimaryKeyConstraint("namespace", "name", "value", "born", "run"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO weft_labels SELECT r.namespace, t.name, t.value, r.born, r.id FROM weft_tags t"
        " JOIN weft_runs r ON r.id = t.run"
    )
    op.drop_table("weft_tags")
    op.create_table(
        "weft_uses", *_text("run", "digest"), sa.PrimaryKeyConstraint("run", "digest"), sqlite_with_rowid=False
    )
    op.create_index("weft_uses_by_digest", "weft_uses", ["digest", "run"])
    # Whoever uses those that are there nobody knows: they stay.
    op.execute("INSERT INTO weft_uses SELECT '', digest FROM weft_blobs")
