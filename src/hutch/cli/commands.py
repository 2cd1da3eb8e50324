"""Which commands there are. Each is a module: `add(parser)` for its options, `run(arguments)` for its exit code.

A group (`hutch box …`) is a package that says in its first lines what its commands are about.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("hutch.cli.run", "run a command in a new box"),
    "shell": ("hutch.cli.shell", "open a shell in a new box"),
    "box": ("hutch.cli.box", "make boxes that stay, and work in them"),
    "volume": ("hutch.cli.volume", "named directories that outlive boxes"),
    "events": ("hutch.cli.events", "what happened to boxes"),
    "serve": ("hutch.cli.serve", "serve boxes over HTTP"),
    "key": ("hutch.cli.key", "make and revoke keys for the server"),
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

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "box": {
        "create": ("hutch.cli.box.create", "make a box that stays"),
        "list": ("hutch.cli.box.list", "the boxes there are"),
        "show": ("hutch.cli.box.show", "everything about one box"),
        "exec": ("hutch.cli.box.exec", "run a command in a box"),
        "jobs": ("hutch.cli.box.jobs", "the jobs of a box"),
        "logs": ("hutch.cli.box.logs", "what a job has written"),
        "attach": ("hutch.cli.box.attach", "connect this terminal to a job"),
        "cp": ("hutch.cli.box.cp", "copy files into, out of and between boxes"),
        "pause": ("hutch.cli.box.pause", "freeze a box until its next use"),
        "resume": ("hutch.cli.box.resume", "let a paused or stopped box run again"),
        "stop": ("hutch.cli.box.stop", "end a persistent box's processes and keep its files"),
        "rename": ("hutch.cli.box.rename", "give a box another name"),
        "lease": ("hutch.cli.box.lease", "who holds a box, and until when"),
        "takeover": ("hutch.cli.box.takeover", "hold a box, whoever held it"),
        "release": ("hutch.cli.box.release", "give up the lease of a box"),
        "destroy": ("hutch.cli.box.destroy", "end boxes, with their files"),
    },
    "volume": {
        "create": ("hutch.cli.volume.create", "make a volume"),
        "list": ("hutch.cli.volume.list", "the volumes there are"),
        "show": ("hutch.cli.volume.show", "one volume, and the boxes that use it"),
        "remove": ("hutch.cli.volume.remove", "remove a volume, with its files"),
    },
}
"""Commands that have commands: the same for each of theirs."""
