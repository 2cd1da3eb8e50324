"""Finds out whether boxes can have a network on this machine, by which means, and what is missing."""

import os
from collections.abc import Callable
from typing import NamedTuple

from hutch.providers.native.network.nft_chains import closed_forward_chain

ROUTED = "veth+nftables"
CARRIED = "pasta"

_FORWARDING = "/proc/sys/net/ipv4/ip_forward"
TUN = "/dev/net/tun"
_SYSTEM_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_CAP_NET_ADMIN, _CAP_SYS_ADMIN, _CAP_MKNOD = 12, 21, 27


class Availability(NamedTuple):
    """Whether boxes can have a network here, how, and if not, why and what would help."""

    usable: bool
    how: str
    reason: str = ""
    remedy: str = ""


def available() -> Availability:
    """How an uplink of this process would work. Call it before `leave_machine_network`."""
    if find_program("nft") is None:
        return Availability(False, ROUTED, "nft is not installed", "install the package nftables")
    if not privileged():
        return _pasta_available(lambda: _opens(TUN))
    obstacle = _routing_obstacle()
    if not obstacle:
        return Availability(True, ROUTED)
    carried = _pasta_available(lambda: os.stat(TUN).st_mode & 0o006 == 0o006 or own_tun_possible())
    if carried.usable:
        return carried
    return Availability(
        False, ROUTED, f"{obstacle}, and {carried.reason}", f"sysctl -w net.ipv4.ip_forward=1, or {carried.remedy}"
    )


def find_program(name: str) -> str | None:
    """Find `name` on PATH or in a system directory, because an ordinary user's PATH often lacks the sbin ones."""
    for directory in (*os.environ.get("PATH", "").split(":"), *_SYSTEM_DIRECTORIES):
        path = f"{directory}/{name}"
        if directory.startswith("/") and os.access(path, os.X_OK):
            return path
    return None


def own_tun_possible() -> bool:
    """Whether the network helper can make a tun device that pasta, as an ordinary user, may open."""
    return _holds(_CAP_SYS_ADMIN, _CAP_MKNOD)


def privileged() -> bool:
    """Whether this process may change the machine's own links and tables."""
    return _holds(_CAP_NET_ADMIN, _CAP_SYS_ADMIN)


def _holds(*capabilities: int) -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    needed = sum(1 << capability for capability in capabilities)
    return int(effective, 16) & needed == needed


def _routing_obstacle() -> str:
    with open(_FORWARDING, encoding="ascii") as file:
        if file.read().strip() != "1":
            return "this machine does not forward packets (net.ipv4.ip_forward is 0)"
    try:
        chain = closed_forward_chain()
    except OSError as error:
        return f"the chains of nf_tables cannot be read ({error})"
    return f"the chain «{chain}» drops forwarded packets" if chain else ""


def _pasta_available(tun_opens: Callable[[], bool]) -> Availability:
    if find_program("pasta") is None:
        return Availability(False, CARRIED, "pasta is not installed", "install the package passt")
    if not os.path.exists(TUN):
        return Availability(False, CARRIED, f"{TUN} does not exist", "modprobe tun")
    if not tun_opens():
        remedy = f'chmod 0666 {TUN}, and a udev rule KERNEL=="tun", MODE="0666" to keep it so'
        return Availability(False, CARRIED, f"{TUN} is not open to ordinary users", remedy)
    if not _has_default_route():
        reason = "this machine has no default route, whose interface pasta would use"
        return Availability(False, CARRIED, reason, "connect the machine to a network")
    return Availability(True, CARRIED)


def _has_default_route() -> bool:
    """Look for a default route, which the kernel lists first, however many others there are."""
    with open("/proc/self/net/route", encoding="ascii") as routes:
        return any(line.split()[1] == line.split()[7] == "00000000" for line in routes)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
