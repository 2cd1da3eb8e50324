"""Which commands there are. Each is a module: `add(parser)` for its options, `run(arguments)` for its exit code.

A group (`hutch box …`) is a package that says in its first lines what its commands are about.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("hutch.cli.run", "run a command in a new box"),
    "shell": ("hutch.cli.shell", "open a shell in a new box"),
    "box": ("hutch.cli.box", "make boxes that stay, and work in them"),
    "volume": ("hutch.cli.volume", "named directories that outlive boxes"),
    "image": ("hutch.cli.image", "images that boxes can stand on"),
    "skill": ("hutch.cli.skill", "packages of instructions and scripts for agents"),
    "events": ("hutch.cli.events", "what happened to boxes"),
    "receipts": ("hutch.cli.receipts", "what was done to boxes, and by whom: proven"),
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
    "receipts": {
        "list": ("hutch.cli.receipts.list", "the receipts of a box, or the chains there are"),
        "show": ("hutch.cli.receipts.show", "one receipt, whole"),
        "verify": ("hutch.cli.receipts.verify", "whether every receipt is what was written"),
        "export": ("hutch.cli.receipts.export", "lines of JSON that can be verified anywhere"),
    },
    "volume": {
        "create": ("hutch.cli.volume.create", "make a volume"),
        "list": ("hutch.cli.volume.list", "the volumes there are"),
        "show": ("hutch.cli.volume.show", "one volume, and the boxes that use it"),
        "remove": ("hutch.cli.volume.remove", "remove a volume, with its files"),
    },
    "skill": {
        "install": ("hutch.cli.skill.install", "install a skill, or a newer version of it"),
        "preview": ("hutch.cli.skill.preview", "what installing would bring and change"),
        "list": ("hutch.cli.skill.list", "the skills there are"),
        "show": ("hutch.cli.skill.show", "one skill, its files and what it declares"),
        "create": ("hutch.cli.skill.create", "make a new skill"),
        "edit": ("hutch.cli.skill.edit", "change a file of a skill in your editor"),
        "write": ("hutch.cli.skill.write", "write a file of a skill from standard input"),
        "save": ("hutch.cli.skill.save", "make what was edited in a box a new version"),
        "versions": ("hutch.cli.skill.versions", "the versions that are kept"),
        "upgrade": ("hutch.cli.skill.upgrade", "get the newest from where it came"),
        "rollback": ("hutch.cli.skill.rollback", "go back to another version"),
        "pin": ("hutch.cli.skill.pin", "keep it at a version"),
        "unpin": ("hutch.cli.skill.unpin", "let it change again"),
        "export": ("hutch.cli.skill.export", "write it as a zip file"),
        "bind": ("hutch.cli.skill.bind", "groups of skills for boxes made with --skills"),
        "scan": ("hutch.cli.skill.scan", "find skills in a tree of directories"),
        "remove": ("hutch.cli.skill.remove", "remove a skill, with all its versions"),
    },
    "image": {
        "pull": ("hutch.cli.image.pull", "fetch an image from a registry"),
        "import": ("hutch.cli.image.import_", "take images from a layout, a `docker save` archive or a root's tar"),
        "build": ("hutch.cli.image.build", "make an image from another one, step by step"),
        "list": ("hutch.cli.image.list", "the images there are"),
        "show": ("hutch.cli.image.show", "one image, its layers, and the boxes on it"),
        "export": ("hutch.cli.image.export", "write an image as an OCI layout"),
        "remove": ("hutch.cli.image.remove", "remove images, with layers nobody else needs"),
        "prune": ("hutch.cli.image.prune", "remove what no image and no box needs"),
    },
}
"""Commands that have commands: the same for each of theirs."""
