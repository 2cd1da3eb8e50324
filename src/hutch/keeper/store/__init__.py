"""Where records live: in memory, SQLite or PostgreSQL, under one schema."""
