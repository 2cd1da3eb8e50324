"""One call of a skill's own tool: its command line in a box, its input, and the enforcement of its permissions.

A small program drops the rights that the skill did not declare, and then executes the tool's command.

It runs in the box as the box's user. `unshare` is closed there, but a process may always narrow itself: a system call
filter without sockets other than Unix ones (`network: false`), and a Landlock domain with the declared places only
(`paths`), to be read or written as the declared tools could (`tools`). Without a network the domain also refuses TCP
(ABI 4, Linux 6.7), for sockets that the filter did not see being made: those that another process hands over. Both are
inherited and cannot be undone. What it does not close: another process of the same box that acts for it, over a Unix
socket or through files that it may write.
"""

import json
from collections.abc import Mapping

from hutch.errors import NotFound, Refused
from hutch.model.skills import INSTALLED_AT, SkillInfo, SkillPermissions, SkillPlace, SkillTool
from hutch.model.spec import EffectiveSpec, NetworkMode

_WITH_PATH = 'PATH="${SKILL_BIN:+$SKILL_BIN:}$PATH"; export PATH; exec "$@"'
SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/sys", "/nix")
"""Paths that every program may read and execute."""
DEVICE_PATHS = ("/dev",)
READING_TOOLS = frozenset({"read", "glob", "grep", "send_file"})
WRITING_TOOLS = frozenset({"write", "edit", "exec", "python", "job"})
"""Our tools that change files. For `tools`, a skill's program may do to files what the declared tools could do."""


def find_tool(skill: SkillInfo, name: str) -> SkillTool:
    found = next((tool for tool in skill.tools if tool.name == name), None)
    if found is None:
        raise NotFound(f"skill {skill.name} has no tool {name}")
    return found


def command_line(skill: SkillInfo, tool: SkillTool, place: SkillPlace, box: EffectiveSpec) -> tuple[str, ...]:
    """Return the command to run with `place.env` and the arguments as JSON on its standard input."""
    if skill.permissions.network and box.network is NetworkMode.OFF:
        raise Refused(
            f"skill {skill.name} needs the network, and this box has none",
            remedy="use a box with network, or do without its tools",
            details={"permission": "network"},
        )
    command: tuple[str, ...] = _resolve_program(tool.command, place.path)
    if "SKILL_BIN" in place.env:
        command = ("sh", "-c", _WITH_PATH, "sh", *command)
    # This is outermost: a `python3` among the skill's own dependencies must not be the one that confines it.
    rules = confinement_rules(
        skill.name, place.state, skill.permissions, box_has_network=box.network is not NetworkMode.OFF
    )
    if rules is not None:
        command = ("python3", "-I", "-S", "-c", _CONFINE, json.dumps(rules), *command)
    return command


def encode_arguments(arguments: Mapping[str, object]) -> str:
    """Encode a tool's arguments as its program reads them."""
    return json.dumps(arguments)


def _resolve_program(command: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Resolve a relative program with a slash in its name as a file of the skill."""
    program = command[0]
    if "/" in program and not program.startswith("/"):
        return (f"{path}/{program}", *command[1:])
    return command


_CONFINE = r"""
import ctypes, json, os, platform, struct, sys
rules = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*words):
    if libc.syscall(*words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return 0
def give_up(why):
    sys.stderr.write("hutch: the skill's permissions cannot be enforced in this box: %s\n" % why)
    sys.exit(126)
x86 = platform.machine() == "x86_64"
try:
    call(157 if x86 else 167, 38, 1, 0, 0, 0)
    if not rules["network"]:
        arch, socket_number = (0xC000003E, 41) if x86 else (0xC00000B7, 198)
        refused = 0x00050000 | 13
        steps = [(0x20, 0, 0, 4), (0x15, 0, 7, arch), (0x20, 0, 0, 0), (0x35, 5, 0, 0x40000000),
                 (0x15, 4, 0, 425), (0x15, 0, 2, socket_number), (0x20, 0, 0, 16), (0x15, 0, 1, 1),
                 (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, refused)]
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        class Program(ctypes.Structure):
            _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
        program = Program(len(steps), code)
        call(317 if x86 else 277, 1, 0, ctypes.byref(program))
    version = libc.syscall(444, None, 0, 1)
    if rules["read"] is not None and version < 2:
        give_up("its kernel has no Landlock, which `paths` needs")
    tcp = 0 if rules["network"] or version < 4 else 1 | 2
    if rules["read"] is not None or tcp:
        every = (1 << 13) - 1 | (1 << 13) | (1 << 14 if version >= 3 else 0)
        reading = 1 | 4 | 8
        governed = struct.pack("=QQ", every if rules["read"] is not None else 0, tcp)
        ruleset = libc.syscall(444, governed, 16 if tcp else 8, 0)
        if ruleset < 0:
            give_up(os.strerror(ctypes.get_errno()))
        for rights, places in ((reading, rules["read"] or ()), (every, rules["write"] or ())):
            for place in places:
                try:
                    fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
                except OSError:
                    continue
                mask = rights if os.path.isdir(place) else rights & (1 | 2 | 4 | 1 << 14) & every
                rule = ctypes.create_string_buffer(struct.pack("=Qi", mask, fd), 12)
                call(445, ruleset, 1, rule, 0)
                os.close(fd)
        call(446, ruleset, 0)
        os.close(ruleset)
except OSError as error:
    give_up(error)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write("hutch: %s: %s\n" % (sys.argv[2], error.strerror))
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


def confinement_rules(
    name: str, state: str, permissions: SkillPermissions, *, box_has_network: bool
) -> dict[str, object] | None:
    """Return the restrictions to apply; None if the box already ensures everything that was declared."""
    network = permissions.network is not False or not box_has_network
    places = _allowed_paths(permissions)
    if places is None:
        return None if network else {"network": network, "read": None, "write": None}
    read, write = places
    return {
        "network": network,
        "read": [*SYSTEM_PATHS, f"{INSTALLED_AT}/{name}", *read],
        "write": [*DEVICE_PATHS, "/tmp", state, *write],
    }


def _allowed_paths(permissions: SkillPermissions) -> tuple[list[str], list[str]] | None:
    """Return the paths that may be read, and those that may also be written; None for no restriction."""
    tools = permissions.tools
    reads = tools is None or not {*tools}.isdisjoint(READING_TOOLS | WRITING_TOOLS)
    writes = tools is None or not {*tools}.isdisjoint(WRITING_TOOLS)
    if permissions.paths is None:
        if writes:
            return None
        return (["/"] if reads else []), []
    read: list[str] = []
    write: list[str] = []
    for path in permissions.paths:
        place = path.removesuffix(":ro")
        absolute = place if place.startswith("/") else f"/workspace/{place}"
        if reads:
            (write if writes and not path.endswith(":ro") else read).append(absolute)
    return read, write
