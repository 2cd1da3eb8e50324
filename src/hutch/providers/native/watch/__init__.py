"""Watchdogs: limits that Hutch holds itself where the kernel does not."""
