"""The checks: pure functions from facts to findings. Each says what follows, and a fix that can be pasted."""

import re
from collections.abc import Callable, Iterator

from hutch.doctor.facts import Facts, Place
from hutch.doctor.findings import Finding, fail, ok, warn

KERNEL_FLOOR = (5, 12)
"""The oldest kernel with mount_setattr (5.12), overlay in user namespaces (5.11) and close_range (5.9)."""

_NEWER = (
    ((5, 14), "pids of rootless boxes are counted per user, not per box"),
    (
        (5, 19),
        "as root, no persistent boxes and no writable root (idmapped layers); Landlock is not used",
    ),
    (
        (6, 6),
        "in a temporary box a removed directory of the image cannot be made again, and a new one beside the image's "
        "own not be renamed (no user xattrs on tmpfs)",
    ),
)


def findings(facts: Facts) -> list[Finding]:
    """Return all findings that apply, in the order in which a person would fix them."""
    if facts.platform != "linux":
        return [not_linux(facts)]
    return [finding for check in CHECKS for finding in check(facts)]


def not_linux(facts: Facts) -> Finding:
    return fail(
        "system",
        f"{facts.platform} {facts.kernel}",
        "the native engine is for Linux: no native box can be made here; the client and other providers work",
        "use Linux (a virtual machine or WSL 2 will do), or a provider that runs elsewhere",
    )


def kernel_version(facts: Facts) -> Iterator[Finding]:
    match = re.match(r"(\d+)\.(\d+)", facts.kernel)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    found = f"{facts.kernel} ({facts.distribution})"
    if version < KERNEL_FLOOR:
        floor = ".".join(map(str, KERNEL_FLOOR))
        yield fail("kernel", found, f"boxes need Linux {floor} or newer", "upgrade the kernel; 6.6 or newer has it all")
        return
    missing = [text for since, text in _NEWER if version < since]
    if missing:
        yield warn("kernel", found, "; ".join(missing), "upgrade to Linux 6.6 or newer")
    else:
        yield ok("kernel", found)


def architecture(facts: Facts) -> Iterator[Finding]:
    if facts.machine in ("x86_64", "aarch64"):
        yield ok("architecture", facts.machine)
    else:
        yield fail("architecture", facts.machine, "there is no system call filter for it", "use x86_64 or aarch64")


def python_version(facts: Facts) -> Iterator[Finding]:
    found = ".".join(map(str, facts.python))
    if facts.python >= (3, 11):
        yield ok("python", found)
    else:
        yield fail("python", found, "Hutch needs Python 3.11 or newer", "install Python 3.11 or newer")


def installation(facts: Facts) -> Iterator[Finding]:
    """Check that others can reach the installation: one in a closed home works for one user only, and never says so."""
    if not facts.closed_to_others:
        yield ok("installation", facts.installed)
        return
    yield warn(
        "installation",
        f"{facts.installed}: other users cannot enter {facts.closed_to_others}",
        "only this user can run this hutch, and boxes of image host cannot use this Python's packages",
        "python3 -m venv /opt/hutch && /opt/hutch/bin/pip install hutch && ln -s /opt/hutch/bin/hutch /usr/local/bin/",
    )


def user_namespaces(facts: Facts) -> Iterator[Finding]:
    name = "user namespaces"
    consequence = "no box can be made"
    answer = facts.trials.get("user namespace", "not tried")
    if facts.sysctls.get("user.max_user_namespaces") == "0":
        yield fail(name, "user.max_user_namespaces is 0", consequence, "sysctl -w user.max_user_namespaces=15000")
    elif facts.euid != 0 and facts.sysctls.get("kernel.unprivileged_userns_clone") == "0":
        yield fail(
            name,
            "kernel.unprivileged_userns_clone is 0",
            "no box can be made by an ordinary user",
            "sysctl -w kernel.unprivileged_userns_clone=1 (as root), or run hutch as root",
        )
    elif answer:
        yield fail(name, answer, consequence, _namespace_fix(facts))
    else:
        yield ok(name, "usable")


def _namespace_fix(facts: Facts) -> str:
    if facts.container:
        return f"start this {facts.container} container with --security-opt seccomp=unconfined, or run hutch outside it"
    return "allow user namespaces: a kernel with CONFIG_USER_NS, and user.max_user_namespaces above 0"


def apparmor(facts: Facts) -> Iterator[Finding]:
    """Check AppArmor: Ubuntu 23.10 and newer grant the namespace and refuse everything in it."""
    if facts.sysctls.get("kernel.apparmor_restrict_unprivileged_userns") != "1":
        return
    if facts.euid == 0 or not facts.trials.get("mount"):
        yield ok("apparmor", "restricts user namespaces of ordinary users, but not ours")
        return
    yield fail(
        "apparmor",
        "kernel.apparmor_restrict_unprivileged_userns is 1",
        "user namespaces exist but nothing may be mounted in them, so an ordinary user can make no box",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (as root; in /etc/sysctl.d to keep it), "
        "or an AppArmor profile with `userns,` for this Python",
    )


def mounts(facts: Facts) -> Iterator[Finding]:
    if "mount" not in facts.trials:
        return
    steps = ("mount", "overlay", "proc", "network namespace", "other namespaces")
    refused = {step: answer for step in steps if (answer := facts.trials.get(step))}
    if not refused:
        yield ok("mounts and namespaces", "tmpfs, overlay, proc, network, ipc, uts, cgroup")
        return
    for step, answer in refused.items():
        yield fail(f"{step} in a user namespace", answer, "no box can be made", _mount_fix(step, facts))


def _mount_fix(step: str, facts: Facts) -> str:
    if step == "overlay":
        return "modprobe overlay; it may be mounted in user namespaces since Linux 5.11"
    if step == "proc" and facts.container:
        # A masked /proc of the outer container forbids a fresh one in a user namespace (mount_too_revealing).
        return f"start this {facts.container} container with --security-opt systempaths=unconfined"
    if facts.sysctls.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return "see apparmor above"
    if facts.container:
        return f"start this {facts.container} container with --security-opt apparmor=unconfined"
    return "look for what refuses it: AppArmor or SELinux messages in the kernel's log (dmesg)"


def tmpfs_xattrs(facts: Facts) -> Iterator[Finding]:
    answer = facts.trials.get("overlay opaque")
    if answer is None:
        return
    if not answer:
        yield ok("tmpfs user xattrs", "usable")
        return
    yield warn(
        "tmpfs user xattrs",
        answer,
        "among the image's own directories a removed one cannot be made again, and a new one not be renamed",
        "upgrade to Linux 6.6 or newer",
    )


def identity(facts: Facts) -> Iterator[Finding]:
    if facts.ranges:
        yield ok("identity", "each box has 65,536 host ids of its own")
        return
    yield warn(
        "identity",
        f"uid {facts.euid}, one id for each box",
        "inside there is one user, who outside is you: no --user root, and only namespaces keep boxes apart",
        "run hutch as root to give each box ids of its own",
    )


def cgroups(facts: Facts) -> Iterator[Finding]:
    machine = facts.cgroups
    if machine is None:
        return
    held = [name for name in ("memory", "pids", "cpu", "freezer") if getattr(machine, name)]
    found = f"cgroup {machine.mode}: {', '.join(held) or 'nothing usable'}"
    if len(held) == 4:
        yield ok("cgroups", found)
        return
    yield warn(
        "cgroups",
        found,
        "limits without a controller are held by weaker means, or by nothing and then refused (see limits below)",
        machine.reason or "start under systemd-run --user --scope -p Delegate=yes",
    )


def seccomp(facts: Facts) -> Iterator[Finding]:
    if facts.seccomp:
        yield ok("seccomp", "filters are available")
    else:
        yield fail("seccomp", "no filters", "no box can be made", "a kernel with CONFIG_SECCOMP_FILTER")


def landlock(facts: Facts) -> Iterator[Finding]:
    from hutch.linux.landlock import REMEDY, usable  # this module is for Linux only

    if usable(facts.landlock):
        yield ok("landlock", f"ABI {facts.landlock}")
        return
    yield warn(
        "landlock",
        f"ABI {facts.landlock}" if facts.landlock else "not available",
        "the second wall around a box's files is missing; mounts and namespaces still hold",
        REMEDY,
    )


def network(facts: Facts) -> Iterator[Finding]:
    if facts.network is None:
        return
    if facts.network.usable:
        yield ok("network", f"on is possible, by {facts.network.how}")
        return
    yield warn("network", facts.network.reason, "boxes with network on are refused; off works", facts.network.remedy)


def previews(facts: Facts) -> Iterator[Finding]:
    if not facts.previews:
        yield ok("previews", "PORT-BOX.localhost, which browsers resolve to this machine")
    elif facts.previews_resolve:
        yield ok("previews", facts.previews)
    else:
        yield warn(
            "previews",
            f"{facts.previews}: names below it have no address",
            "previews open only by the path form, where pages have no storage and no cookies",
            "add a wildcard DNS entry (*.DOMAIN) that leads to the server, or leave server.previews out",
        )


def directories(facts: Facts) -> Iterator[Finding]:
    yield _writable("state directory", facts.state, "HUTCH_STATE_DIR")
    yield _writable("run directory", facts.run, "HUTCH_RUN_DIR")


def _writable(name: str, place: Place, variable: str) -> Finding:
    if not place.obstacle:
        return ok(name, place.path)
    return fail(
        name, f"{place.path}: {place.obstacle}", "no box can be made", f"free it, or set {variable} to another one"
    )


def surroundings(facts: Facts) -> Iterator[Finding]:
    if facts.container:
        yield ok("container", f"running inside {facts.container}")
    others = ", ".join(f"{name} ({path})" for name, path in facts.engines.items())
    yield ok("other engines", others or "none found; none is needed")


def doors(facts: Facts) -> Iterator[Finding]:
    """Other products that can use this Hutch, and what stands in their way."""
    if facts.address:
        at = f"http://{facts.address}"
        yield ok("bots", f"`hutch serve` takes LangBot at ws://{facts.address}, AstrBot at {at}/bay or {at}/shipyard")
    for root in facts.shared_roots:
        if root.obstacle:
            yield warn(
                "shared with LangBot", f"{root.path}: {root.obstacle}",
                "LangBot's workspaces and skills below it cannot be shown in boxes",
                "make it, or correct server.langbot_shared_roots",
            )  # fmt: skip
        else:
            yield ok("shared with LangBot", root.path)


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    kernel_version, architecture, python_version, installation, directories, user_namespaces, apparmor, mounts,
    tmpfs_xattrs, seccomp, landlock, identity, cgroups, network, previews, surroundings, doors,
)  # fmt: skip
