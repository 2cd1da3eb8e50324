"""What this machine can do: facts are gathered, pure checks judge them, and a real box has the last word."""
