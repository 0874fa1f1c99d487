"""Migrations of the cold store, applied by `weft.archive.schema`."""
