"""The only room that speaks SQL: what runs leave behind, in SQLite or PostgreSQL. It knows nothing of Redis."""
