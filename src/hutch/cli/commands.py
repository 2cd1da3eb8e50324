"""Which commands there are. Each is a module: `add(parser)` for its options, `run(arguments)` for its exit code."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("hutch.cli.run", "run a command in a new box"),
    "shell": ("hutch.cli.shell", "open a shell in a new box"),
    "doctor": ("hutch.cli.doctor", "what this machine can do, and how to get the rest"),
    "prune": ("hutch.cli.prune", "remove what dead processes left behind"),
    "profiles": ("hutch.cli.profiles", "the profiles a box can have"),
    "providers": ("hutch.cli.providers", "the engines that can make boxes here"),
    "conformance": ("hutch.cli.conformance", "check that a provider keeps its contract"),
    "config": ("hutch.cli.config", "show the configuration in use"),
    "completion": ("hutch.cli.completion", "print a completion script for your shell"),
    "version": ("hutch.cli.version", "print the version"),
}
"""Name: (module, one line of help)."""
