"""The command line: thin commands over the public protocols of `hutch.api`. `commands/` holds and lists them."""
