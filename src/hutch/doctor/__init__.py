"""The doctor of a machine: it gathers facts, judges them by pure checks, and then runs a real box."""
