"""What one server keeps between requests: budgets, kept answers, creations, heartbeats, pulls, the spool."""
