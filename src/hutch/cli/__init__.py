"""`hutch …`: thin commands over the keeper. Each is one module with `add(parser)` and `run(arguments) -> exit code`."""
