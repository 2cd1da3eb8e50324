"""Bridge networks: one for each box with network, from a range of our own, and the filters of what it may reach.

An engine's own pools hold about thirty networks; ours hold thousands. Boxes never share one: a neighbour cannot be
called. Where we are root beside the engine, one nftables table for each box keeps the machine itself and every private
range out of reach, as for native boxes. Elsewhere the capabilities say that nothing does.
"""

import asyncio
import itertools
import os
import random
import re
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from hutch.errors import EngineError, Unavailable
from hutch.providers.docker import labels as naming
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.native.network.addresses import parse, refused
from hutch.providers.native.network.availability import find_program

PREFIX = 28
_TRIES = 40
_TABLE = re.compile(r"hutch_box_([a-z0-9]{20})")


def bridge(box_id: str) -> str:
    """Return the name of the box's bridge; an interface's name has at most 15 bytes."""
    return f"hx{box_id[:13]}"


async def create(
    engine: Engine, box_id: str, labels: dict[str, str], addresses: str, *, options: dict[str, str]
) -> IPv4Network:
    """Create the box's network with a range that nobody on the engine uses, and return the range."""
    pool = IPv4Network(addresses)
    taken = _subnets(await engine.call("GET", "/networks"))
    reason = "none is left"
    for subnet in itertools.islice(free(pool, taken), _TRIES):
        body = {
            "Name": naming.network(box_id),
            "Driver": "bridge",
            "CheckDuplicate": True,
            "EnableIPv6": False,
            "Labels": labels,
            "Options": options,
            "IPAM": {"Config": [{"Subnet": str(subnet), "Gateway": str(subnet.network_address + 1)}]},
        }
        try:
            await engine.create_network(body)
        except EngineRefused as error:
            if not re.search(r"overlap|in use|already used|conflict", error.message, re.I):
                raise
            reason = error.message
        else:
            return subnet
    raise EngineError(
        f"no network for box {box_id}: no /{PREFIX} of {pool} is free ({reason})",
        op="create",
        remedy="give the provider a larger range: addresses",
    )


def free(pool: IPv4Network, taken: Sequence[IPv4Network]) -> Iterator[IPv4Network]:
    """Yield free parts of the pool in random order, so that two creations at once rarely want the same one. They are
    computed one by one: there are thousands of parts, and perhaps hundreds of networks to compare each with."""
    spans = [(int(each.network_address), int(each.broadcast_address)) for each in taken if each.overlaps(pool)]
    size = 1 << (32 - PREFIX)
    parts = range(int(pool.network_address), int(pool.broadcast_address) + 1, size)
    for first in random.sample(parts, len(parts)):
        if not any(first <= end and begin <= first + size - 1 for begin, end in spans):
            yield IPv4Network((first, PREFIX))


def _subnets(networks: Sequence[dict[str, Any]]) -> list[IPv4Network]:
    found = []
    for network in networks:
        for config in (network.get("IPAM") or {}).get("Config") or ():
            try:
                found.append(IPv4Network(config.get("Subnet", ""), strict=False))
            except ValueError:
                continue  # IPv6
    return found


class NetworkWalls:
    """The nftables tables of boxes, in the network namespace of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._socket = engine.http.endpoint.path

    async def protect(self, box_id: str, subnet: IPv4Network, allow_private: Sequence[str]) -> None:
        pool = IPv4Network(f"{subnet.network_address}/16", strict=False)
        script = ruleset(box_id, refused(pool, parse(allow_private)), parse(allow_private), nameservers())
        await asyncio.to_thread(self._nft, script)

    async def check(self, box_id: str) -> None:
        """Check that the box's bridge is in the namespace of its filter. The process at the engine's socket may only
        forward it, from another network namespace, where the rules would filter nothing."""
        devices = await asyncio.to_thread(_devices, self._socket)
        if bridge(box_id) not in devices:
            raise EngineError(
                f"the network of box {box_id} cannot be walled: it is not in the network of who listens at "
                f"{self._socket}",
                op="create",
                remedy="name the engine's own socket, or use boxes without a network",
            )

    async def remove(self, box_id: str) -> None:
        # With `add` first, the deletion succeeds whether the table is there or not.
        table = f"table inet hutch_box_{box_id}"
        await asyncio.to_thread(self._nft, f"add {table}\ndelete {table}\n")

    async def boxes(self) -> set[str]:
        """Return the ids of the boxes that have a table."""
        listed = await asyncio.to_thread(self._nft, "list tables\n")
        return set(_TABLE.findall(listed))

    def _nft(self, script: str) -> str:
        program = find_program("nft")
        if program is None:
            raise EngineError("nft is not installed", op="create", remedy="install nftables")
        # The process is looked up each time, because the engine may have been restarted.
        enter = _entrance(self._socket)
        done = subprocess.run([*enter, program, "-f", "-"], input=script, capture_output=True, text=True)
        if done.returncode:
            raise EngineError(f"nft refused: {done.stderr.strip()[:500]}", op="create")
        return done.stdout


def ruleset(
    box_id: str, forbidden: Sequence[IPv4Network], allowed: Sequence[IPv4Network], servers: Sequence[IPv4Address]
) -> str:
    """Return the rules by which this box reaches neither the machine, nor neighbours, nor private ranges."""
    box = f'"{bridge(box_id)}"'
    names = (
        f"ip daddr {{ {', '.join(map(str, servers))} }} meta l4proto {{ tcp, udp }} th dport 53 accept"
        if servers
        else ""
    )
    open_ranges = f"ip daddr {{ {', '.join(map(str, allowed))} }} accept" if allowed else ""
    table = f"table inet hutch_box_{box_id}"
    return f"""
add {table}
delete {table}
{table} {{
  set refused {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {", ".join(map(str, forbidden))} }} }}
  chain to_us {{
    type filter hook input priority filter - 5; policy accept;
    iifname != {box} accept
    {names}
    meta l4proto icmp accept
    reject
  }}
  chain passing {{
    type filter hook forward priority filter - 5; policy accept;
    oifname {box} ct state established,related accept
    oifname {box} reject
    iifname != {box} accept
    meta nfproto != ipv4 drop
    {names}
    {open_ranges}
    ip daddr @refused reject
  }}
}}
"""


def nameservers(path: str = "/etc/resolv.conf") -> list[IPv4Address]:
    """Return this machine's name servers, which boxes ask themselves and which are often private."""
    found = []
    for source in ("/run/systemd/resolve/resolv.conf", path):
        try:
            with open(source) as file:
                words = [line.split() for line in file]
        except OSError:
            continue
        for word in words:
            if len(word) > 1 and word[0] == "nameserver":
                try:
                    address = IPv4Address(word[1])
                except ValueError:
                    continue
                if not address.is_loopback and address not in found:
                    found.append(address)
    return found


def _entrance(engine_socket: str) -> list[str]:
    """Return the command prefix that enters the engine's network namespace, empty if it is ours."""
    pid = _listener(engine_socket)
    ours, theirs = os.stat("/proc/self/ns/net"), os.stat(f"/proc/{pid}/ns/net")
    if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
        return []
    program = find_program("nsenter")
    if program is None:
        raise EngineError("nsenter is not installed", op="create", remedy="install util-linux")
    return [program, f"--net=/proc/{pid}/ns/net"]


def _devices(engine_socket: str) -> set[str]:
    with open(f"/proc/{_listener(engine_socket)}/net/dev") as file:
        return {line.partition(":")[0].strip() for line in file}


def _listener(engine_socket: str) -> int:
    """Return the pid of the process at the other end of the engine's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(engine_socket)
        except OSError as error:
            raise Unavailable(f"the engine at {engine_socket} cannot be reached: {error.strerror}") from error
        pid: int = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    if pid == 0:  # its pid namespace is not below ours
        raise EngineError(
            f"who listens at {engine_socket} cannot be seen from here, so that no network can be walled",
            op="create",
            remedy="run Hutch in the engine's pid namespace, or use boxes without a network",
        )
    return pid
