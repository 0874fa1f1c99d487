"""Schedules: a row each, out of the settings that they stood among."""

from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in names]


def upgrade() -> None:
    schedules = op.create_table(
        "weft_schedules",
        *_text("namespace", "name"),
        *_numbers("partition"),
        *_text("status", "expr", "tz", "task", "declared_by"),
        *_numbers("created_ms", "next_ms", "last_ms"),
        *_text("run"),
        *_numbers("paused_ms"),
        *_text("paused_by"),
        *_numbers("changed_ms"),
        *_text("changed_by"),
        *_numbers("deleted_ms"),
        *_text("deleted_by"),
        *_numbers("seen_ms"),
        sa.Column("fields", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name"),
    )
    settings = sa.table(
        "weft_settings", *(sa.column(name) for name in ("namespace", "partition", "kind", "name", "data"))
    )
    kept = sa.select(settings).where(settings.c.kind == "schedule")
    for row in op.get_bind().execute(kept).all():
        op.get_bind().execute(schedules.insert().values(**_moved(row)))
    op.get_bind().execute(settings.delete().where(settings.c.kind == "schedule"))


def _moved(row: Any) -> dict[str, object]:
    """Returns a schedule as a row. What it says is filled in by the next look at it; what it is rebuilt from stands."""
    fields = msgspec.msgpack.decode(row.data, type=dict[str, bytes])
    paused, ticks = fields.get("paused") == b"1", "next" in fields
    texts = dict.fromkeys(("expr", "tz", "task", "declared_by", "paused_by", "changed_by", "deleted_by"), "")
    numbers = dict.fromkeys(("paused_ms", "changed_ms", "deleted_ms", "seen_ms"), 0)
    return {
        "namespace": row.namespace,
        "name": row.name,
        "partition": row.partition,
        "status": "paused" if paused else "active" if ticks else "ended",
        **texts,
        **numbers,
        "created_ms": int(fields.get("born", b"0")),
        "next_ms": int(fields["next"]) if ticks and not paused else 0,
        "last_ms": int(fields.get("last", b"0")),
        "run": fields.get("run", b"").decode(),
        "fields": bytes(row.data),
    }
