"""What this machine can do: facts are gathered, pure checks turn them into findings, and a real box has the last word."""
