"""The command line: thin commands over the public protocols of `hutch.api`. `commands.py` lists them."""
