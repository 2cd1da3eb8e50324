"""Attacks with a key of role user on what its operator has not given: the box's root, by way of the server's own work.

The control is an admin, whom no right binds: with his key the same steps run the attacker's program as root.
"""

import io
import json
import tarfile
from collections.abc import Iterator

import pytest
from tests.server.serving import Client, Server, serving

BUNDLE_HOME = b'#!/bin/sh\nid -u > /workspace/ran-as\nexec /usr/bin/find.real "$@" 2>/dev/null\n'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def guest_bundle() -> bytes:
    """An exported box, as somebody writes one by hand: its `find` is the attacker's."""
    system = _archive({"usr/bin/find": (BUNDLE_HOME, 0o755)})
    spec = {"profile": "code", "memory_mb": 128, "disk_mb": 64}
    manifest = {
        "version": 1, "box_id": "a" * 20, "provider": "native", "image": "host", "exported_at": 0.0, "spec": spec,
        "parts": ["system"],
    }  # fmt: skip
    return _archive({"hutch.json": (json.dumps(manifest).encode(), 0o600), "system.tar": (system, 0o600)}, mode="w:gz")


def _archive(files: dict[str, tuple[bytes, int]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, (content, bits) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), bits
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def attack(caller: Client) -> str:
    """Have the planted program put into a box, and run by the export. As whom it ran; empty: it did not."""
    made = caller.good("POST", "/v1/boxes/import", guest_bundle())["box"]["id"]
    box = f"/v1/boxes/{made}"
    try:
        caller.call("GET", f"{box}/export")
        found = caller.call("GET", f"{box}/files/content?path=ran-as")
        return found.body.decode().strip() if found.status == 200 else ""
    finally:
        caller.good("DELETE", box)


def test_a_bundle_runs_nothing_as_root(server: Server, rootless: bool) -> None:
    """Import and export handle the system's files as the box's root; a bundle that brings its own `find`
    had it run as root by a key that may not be root (lesson 45)."""
    if rootless:
        pytest.skip("an ordinary user's boxes have no root")
    assert attack(server.unix()) == "0", "the control: an admin's own bundle may"
    assert attack(server.tcp(server.key("user", "attacker"))) == ""


def test_only_authentication_decides_who_a_caller_is(server: Server) -> None:
    """Owners, roles and rights come with the key: no field, label or header of a request is believed."""
    caller = server.tcp(server.key("user", "attacker"))
    for header in ({"hutch_admin": "yes"}, {"hutch_owner": "local"}, {"hutch_role": "admin"}):
        answer = caller.call("GET", "/v1/keys", **header)
        assert (answer.status, answer.json()["code"]) == (403, "refused"), header
    for wrong in ({"owner": "local"}, {"rights": {"root": True}}, {"labels": {"hutch.owner": "local"}}):
        assert caller.call("POST", "/v1/boxes", wrong).status == 400, wrong
    for image in ("dir:/etc", "tar:/etc/passwd"):
        assert caller.call("POST", "/v1/boxes", {"image": image}).status in (403, 404, 422), image
    with caller.box(memory_mb=64, labels={"owner": "local", "mcp-server": "x"}) as box:
        assert caller.good("GET", box)["owner"] == "attacker"
