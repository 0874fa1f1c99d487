"""Run by Alembic: applies migrations on the connection it is given, in the transaction that holds the lock."""

from alembic import context

from weft.archive.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
