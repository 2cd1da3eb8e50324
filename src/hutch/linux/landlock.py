"""The Landlock domain of a box: no path outside the box can be opened, whatever descriptor leaked into it.

The box's mounts and namespaces already hide the host. This is the second defence: a process in the domain that holds a
descriptor of a host directory cannot open, create, rename or remove anything through it. Kernel facts (Landlock ABI 1
to 7, Linux 5.13 to 6.18):

- What is already open stays usable; stat, chmod, chown and connecting to a socket by path are not covered.
- A rule names an inode, and an access is allowed if the walk from the file up to the root meets one. At a mount the
  walk goes on from the *parent* of the mount point. So mounts made later beneath a ruled directory are covered, but
  a rule on the root of the box's merged view would be lost with the next layer switch, which puts another mount
  there. The rule belongs on the directory above: the base.
- A process in a domain may no longer mount, umount or pivot. A process that enters from outside does that.
- ABI 1 refuses every rename and link from one directory to another, which no build or package manager survives, so
  boxes enter a domain from ABI 2 (Linux 5.19) on.

Standard library only: this runs in the spawner and in the fork that becomes a guest.
"""

import errno
import os
from struct import Struct

from hutch.linux.kernel import Call, run_calls, syscall

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

# LANDLOCK_ACCESS_FS_*. EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_* and MAKE_* are bits 0 to 12.
_RIGHTS_OF_ABI_1 = (1 << 13) - 1
_RIGHTS_ADDED = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # REFER, TRUNCATE, IOCTL_DEV

SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
SCOPE_SIGNAL = 1 << 1
_SCOPES_SINCE = 6
_USABLE_SINCE = 2
REMEDY = "Linux 5.19 or newer with landlock in the kernel's lsm= list"

# Landlock is not built in; it is not an active LSM; the seccomp filter of an outer container refuses it.
_ABSENT = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def abi() -> int:
    """The Landlock ABI version of this kernel; 0 where it is not built in or not enabled."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise


def usable(version: int) -> bool:
    """Whether boxes enter a domain on a kernel with this ABI version."""
    return version >= _USABLE_SINCE


def rights(version: int) -> int:
    """Every file access right that this version can restrict. A right that is left out would be allowed everywhere."""
    return _RIGHTS_OF_ABI_1 | sum(bit for since, bit in _RIGHTS_ADDED.items() if since <= version)


_RULESET = Struct("=QQQ")
"""struct landlock_ruleset_attr. Older kernels accept the longer struct if the fields unknown to them are zero."""
_PATH_BENEATH = Struct("=Qi")
"""struct landlock_path_beneath_attr"""


def confine_signals(version: int) -> None:
    """Let this process and what it starts signal nobody else from now on.

    Before ABI 6 this does nothing. The caller has set no_new_privs.
    """
    if version < _SCOPES_SINCE:
        return
    attributes = _RULESET.pack(0, 0, SCOPE_SIGNAL)
    ruleset = syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


class Domain:
    """A domain prepared in the spawner, so that a child makes only the calls that name its own directories.

    With scopes (ABI 6 on) a member cannot signal processes outside the domain, nor connect to their abstract sockets.
    A process that enters the box later is outside, because a domain can only be inherited. It gets a domain of its own
    with `scopes=0`, or the box's root could not signal the users' processes. A guest that has to signal such processes
    cannot be scoped for signals either.
    """

    def __init__(self, version: int, *, scopes: int = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL) -> None:
        governed = rights(version)
        self.enforced = usable(version)
        self.scopes = scopes if version >= _SCOPES_SINCE else 0
        self._governed = governed

    def create_call(self) -> Call:
        """The call that creates a ruleset and returns its descriptor."""
        attributes = _RULESET.pack(self._governed, 0, self.scopes)
        return "landlock_create_ruleset", attributes, len(attributes), 0

    def enter_calls(self, ruleset: int, directories: tuple[int, ...]) -> list[Call]:
        """The calls that confine this thread and all it starts to the trees below the directories (descriptors).

        The first directory is the box's base (O_PATH will do), above the mount that processes see as "/". Close it
        afterwards, because it leads out of the chroot. Others are directories such as that of spilled output, whose
        files processes open again through /dev/stdout. The caller has set no_new_privs.
        """
        rules = [_PATH_BENEATH.pack(self._governed, directory) for directory in directories]
        return [
            *(("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0) for rule in rules),
            ("landlock_restrict_self", ruleset, 0),
        ]

    def enter(self, directories: tuple[int, ...]) -> None:
        """Enter the domain now. Where the kernel has no usable Landlock (`enforced` is False) this does nothing."""
        if not self.enforced:
            return
        ruleset = syscall(*self.create_call())
        try:
            run_calls(self.enter_calls(ruleset, directories))
        finally:
            os.close(ruleset)
