"""Checks of single values of a spec: numbers, paths, names, images, networks. Each error names the field."""

import posixpath
import re

from hutch.errors import Invalid
from hutch.model.ids import is_name
from hutch.model.spec import Isolation, Mount, volume_of

LIMIT_NAMES = ("cpus", "memory_mb", "pids", "disk_mb", "open_files", "timeout_sec")

YEAR_SEC = 366 * 86400.0

BOUNDS: dict[str, tuple[float, float]] = {
    "cpus": (0.01, 4096),  # the smallest quota the kernel takes is 1 ms in a period of 100 ms
    "memory_mb": (8, 1 << 26),
    "pids": (4, 1 << 22),  # PID_MAX_LIMIT
    "disk_mb": (1, 1 << 30),
    "open_files": (16, 1 << 20),  # fs.nr_open as the kernel sets it
    "timeout_sec": (0.001, YEAR_SEC),
    "max_timeout_sec": (0, YEAR_SEC),
    "idle_timeout_sec": (0, 10 * YEAR_SEC),
    "ttl_sec": (0, 10 * YEAR_SEC),
}
"""The smallest and the largest number of each field; where 0 is allowed it means "none"."""

STRENGTH = (Isolation.NONE, Isolation.NAMESPACES, Isolation.GVISOR, Isolation.VM)
"""Weakest first."""

IMAGE_KINDS = ("host", "dir", "tar", "oci")

# A mount over these would change what the box's isolation and programs depend on.
_BOX_OWN_TREES = (
    "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/run",
)  # fmt: skip
_BOX_OWN_PLACES = ("/", "/workspace", "/tmp", "/var")

# MAX_ARG_STRLEN of execve(2): one "NAME=value" with its NUL.
_LONGEST_VARIABLE = 131072
_LABEL = r"[a-zA-Z0-9][a-zA-Z0-9_./-]{0,62}"
_CONTROL = r"[\x00-\x1f\x7f]"
_PRIVATE_RANGES = (
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
)  # fmt: skip


def check_number(field: str, value: float) -> None:
    """Raise Invalid unless the number is finite and within the field's bounds."""
    low, high = BOUNDS[field]
    if not low <= value <= high:  # also refuses NaN
        raise Invalid(
            f"{field} is {_plain(value)}, but must be a number from {_plain(low)} to {_plain(high)}",
            details={"field": field},
            remedy=f"choose one of these, or leave {field} to the profile",
        )


def _plain(number: float) -> str:
    """Write a number without an exponent if possible; Python refuses to write a very long integer at all."""
    if isinstance(number, int):
        return str(number) if abs(number) < 10**20 else "a number of very many digits"
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else str(number)


def plain_path(field: str, path: str) -> str:
    """Normalize the slashes of an absolute path; `..` is Invalid, since symlinks give it two meanings."""
    if not path.startswith("/"):
        raise Invalid(
            f"{field} is {path!r}, but must be an absolute path",
            details={"field": field},
            remedy="write it from / on",
        )
    check_text(field, path)
    if ".." in path.split("/"):
        raise Invalid(
            f"{field} is {path!r}, but must not contain '..'",
            details={"field": field},
            remedy="write the path that is meant",
        )
    return posixpath.normpath("/" + path.lstrip("/"))


def check_text(field: str, text: str) -> None:
    """Refuse NUL, which ends a text early in the kernel, and what UTF-8 cannot encode."""
    if "\0" in text:
        raise Invalid(
            f"{field} contains a NUL character", details={"field": field}, remedy="leave it out: no program can get it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{field} is not valid Unicode", details={"field": field}, remedy="other bytes go by a file or by stdin"
        ) from error


def check_environment(field: str, variables: dict[str, str]) -> None:
    """Check that execve can pass on names and values. Errors quote no value, which may be a secret."""
    for name, value in variables.items():
        check_text(f"a name in {field}", name)
        if not name or "=" in name:
            raise Invalid(
                f"{field} has the name {name!r}: it must not be empty or contain '='",
                details={"field": field},
                remedy="give the name alone; what comes after '=' is the value",
            )
        check_text(f"{field}.{name}", value)
        if len(name.encode()) + len(value.encode()) + 2 > _LONGEST_VARIABLE:
            raise Invalid(
                f"{field}.{name} is longer than the {_LONGEST_VARIABLE} bytes that the kernel passes to a program",
                details={"field": field},
                remedy="write it to a file in the box",
            )


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise Invalid(f"{len(labels)} labels are more than 64", details={"field": "labels"})
    for key, value in labels.items():
        if not re.fullmatch(_LABEL, key):
            raise Invalid(
                f"labels has the key {key!r}: letters, digits and _ . / - only, 63 at most", details={"field": "labels"}
            )
        if key.startswith("hutch."):
            raise Invalid(f"labels has the key {key!r}: 'hutch.' is kept for Hutch itself", details={"field": "labels"})
        check_text(f"labels.{key}", value)
        if len(value) > 256 or re.search(_CONTROL, value):
            raise Invalid(
                f"labels.{key} must have at most 256 characters and no control character", details={"field": "labels"}
            )


def check_user(user: str) -> None:
    """Accept "user", "root" or a number of the box's 65,536 ids."""
    if user in ("user", "root"):
        return
    # isdigit alone also accepts digits of other scripts.
    if not (user.isascii() and user.isdigit() and len(user) <= 5 and int(user) < 65536):
        raise Invalid(
            f"user is {user!r}, but must be 'user', 'root' or a number from 0 to 65535",
            details={"field": "user"},
            remedy="names of an image's own users are not looked up: give the number",
        )


def check_ports(ports: tuple[int, ...]) -> None:
    for port in ports:
        if not 1 <= port <= 65535:
            raise Invalid(f"ports has {port}, but a port is a number from 1 to 65535", details={"field": "ports"})
    if len(set(ports)) != len(ports):
        raise Invalid(f"ports names a port twice: {', '.join(map(str, ports))}", details={"field": "ports"})


def check_image(image: str, kinds: tuple[str, ...]) -> str:
    """Return the kind of an image reference; `kinds` are those that a provider adds to ours."""
    check_text("image", image)
    kind, _, reference = image.partition(":")
    if kind not in IMAGE_KINDS and kind not in kinds:
        raise Invalid(
            f"image is {image!r}, but must be host, dir:PATH, tar:PATH or oci:REF",
            details={"field": "image"},
            remedy=f"for an image of a registry write 'oci:{image}'" if image else "",
        )
    if kind == "host" and image != "host":
        raise Invalid(f"image is {image!r}, but 'host' takes no reference", details={"field": "image"})
    if kind != "host" and not reference:
        raise Invalid(f"image is {image!r}, but {kind}: needs a reference", details={"field": "image"})
    if kind in ("dir", "tar"):
        plain_path("image", reference)
    return kind


def check_private_ranges(ranges: tuple[str, ...]) -> None:
    """Accept CIDRs within private ranges only: a wider one would open more than was meant."""
    if not ranges:
        return
    from ipaddress import IPv4Network, ip_network

    for text in ranges:
        try:
            network = ip_network(text)
        except ValueError as error:
            raise Invalid(f"allow_private has {text!r}: {error}", details={"field": "allow_private"}) from error
        if not isinstance(network, IPv4Network):
            raise Invalid(
                f"allow_private has {text!r}, but boxes have no IPv6, so that no such address can be reached",
                details={"field": "allow_private"},
                remedy="leave it out, or name the IPv4 range of the same hosts",
            )
        if not any(network.subnet_of(IPv4Network(each)) for each in _PRIVATE_RANGES):
            raise Invalid(
                f"allow_private has {text!r}, which does not lie within a private range",
                details={"field": "allow_private"},
                remedy=f"private ranges are {', '.join(_PRIVATE_RANGES)}; public addresses need no permission",
            )


def plain_mounts(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Normalize the targets of mounts and check them. `mounts.check` checks the sources."""
    for mount in mounts:
        check_text("mount source", mount.source)
        check_volume("mounts", mount.source)
    plain = tuple(mount.but(target=plain_path("mount target", mount.target)) for mount in mounts)
    _check_targets(plain)
    return plain


def check_volume(field: str, source: str) -> bool:
    """Whether a source names a volume. Invalid if no volume can have that name."""
    name = volume_of(source)
    if name is not None and not is_name(name):
        raise Invalid(f"{source!r} does not name a volume", details={"field": field})
    return name is not None


def _check_targets(mounts: tuple[Mount, ...]) -> None:
    """Refuse targets over the box's own parts, named twice, or inside each other."""
    seen: list[str] = []
    for mount in mounts:
        target = mount.target
        if target in _BOX_OWN_PLACES or any(at_or_below(target, tree) for tree in _BOX_OWN_TREES):
            raise Invalid(
                f"mount target {target!r} would cover a part of the box itself",
                details={"field": "mounts"},
                remedy="choose a directory of its own, such as /mnt/data; /workspace is set by `workspace`",
            )
        for other in seen:
            if target == other:
                raise Invalid(f"mount target {target!r} is named twice", details={"field": "mounts"})
            if at_or_below(target, other) or at_or_below(other, target):
                raise Invalid(
                    f"mount targets {other!r} and {target!r} lie inside each other",
                    details={"field": "mounts"},
                    remedy="give them separate directories",
                )
        seen.append(target)


def at_or_below(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def text_of(value: object) -> str:
    """Write a value as an adjustment shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return ", ".join(value) or "none"  # names only: values may be secret
    if isinstance(value, tuple):
        return (
            ", ".join(
                f"{item.source}:{item.target}:{item.mode}" if isinstance(item, Mount) else str(item) for item in value
            )
            or "none"
        )
    return str(value)
