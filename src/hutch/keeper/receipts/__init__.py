"""Receipts: the tamper-evident record of every operation, and the ledgers that hold it."""
