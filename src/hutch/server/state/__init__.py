"""What one server keeps between requests: budgets, kept answers, heartbeats, pulls, the spool."""
