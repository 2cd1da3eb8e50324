"""What `templateID` may name: E2B's own templates, images, checkpoints; and what is refused (S13)."""

import os
import shutil
import time
from pathlib import Path

import e2b
import pytest

from tests import proofs
from tests.cli.cli_process import hutch
from tests.e2e.e2b_sdk import E2B
from tests.images.registry_server import TOOLS, busybox, tar_of


def test_any_image_is_a_template(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) A sandbox stands on the image that the template names, if the server has it."""
    script = ("bin/bash", {"data": b'#!/bin/sh\nexec /bin/sh "$@"\n', "mode": 0o755})
    archive = tmp_path / "root.tar"
    archive.write_bytes(tar_of(*busybox(*TOOLS), script, ("opt/mark", {"data": b"of the image"})))
    done = hutch("image", "import", str(archive), "own/image:1", env={"HUTCH_STATE_DIR": str(hutch_e2b.server.state)})
    assert done.returncode == 0, done.stderr
    for template in ("own/image:1", "oci:own/image:1"):
        with hutch_e2b.sandbox(template) as sandbox:
            assert sandbox.commands.run("cat /opt/mark").stdout == "of the image"
            assert sandbox.get_info().template_id == template
            sandbox.files.write("note", "text")
            assert sandbox.files.read("/home/user/note") == "text"
    with pytest.raises(e2b.SandboxException, match="not here"):
        e2b.Sandbox.create("oci:own/image:2", **hutch_e2b.options)


@pytest.mark.skipif(os.geteuid() != 0, reason="layers of a box over the machine's own files need root")
def test_a_checkpoint_is_a_template(hutch_e2b: E2B) -> None:
    """(S13) `BOX:CHECKPOINT` is a template: sandboxes begin with the files of that moment. Other owners have none."""
    owner = hutch_e2b.server.tcp(hutch_e2b.server.key("admin", "e2b"), hutch_session="e2b")
    with hutch_e2b.sandbox() as source:
        source.files.write("state", "then")
        made = owner.good("POST", f"/v1/boxes/{source.sandbox_id}/checkpoints", {"name": "mark"})
        source.files.write("state", "now")
        for checkpoint in ("mark", made["id"]):
            with hutch_e2b.sandbox(f"{source.sandbox_id}:{checkpoint}", metadata={"of": "it"}) as sandbox:
                assert sandbox.files.read("state") == "then"
                assert sandbox.get_info().metadata == {"of": "it"}
        with pytest.raises(e2b.SandboxException, match="404"):
            e2b.Sandbox.create(f"{source.sandbox_id}:nonesuch", **hutch_e2b.options)
        other = E2B(hutch_e2b.server, owner="another")
        with pytest.raises(e2b.SandboxException, match="404"):
            e2b.Sandbox.create(f"{source.sandbox_id}:mark", **other.options)


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_the_base_template_is_made_by_one_command(hutch_e2b: E2B) -> None:
    """(S13) `hutch image base` makes a Debian with what programs on E2B expect, once, and `base` then stands on it."""
    if os.geteuid() != 0 or shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("debootstrap, run as root, makes the Debian")
    environment = {"HUTCH_STATE_DIR": str(hutch_e2b.server.state), "HUTCH_RUN_DIR": str(hutch_e2b.server.run)}
    taken = []
    for _ in range(2):
        start = time.monotonic()
        done = hutch("image", "base", env=environment, timeout=1500)
        assert done.returncode == 0, done.stderr
        taken.append(round(time.monotonic() - start, 1))
    assert b"as before" in done.stderr, "the second call finds what the first one made"
    try:
        with hutch_e2b.sandbox() as sandbox:
            run = sandbox.commands.run
            assert run("id -un; pwd; echo $HOME").stdout.split() == ["user", "/home/user", "/home/user"]
            assert run("python --version && python3 --version && git --version && curl --version").exit_code == 0
            assert run("id -u", user="root").stdout == "0\n"
            release = run(". /etc/os-release; echo $PRETTY_NAME").stdout.strip()
            assert run("touch /usr/by-root", user="root").exit_code == 0
            assert run("sudo id -un; echo in | sudo cat; sudo -u user id -un").stdout.split() == ["root", "in", "user"]
            assert run("sudo rm /usr/by-root; sudo false; echo $?").stdout == "1\n"
            assert sandbox.commands.list() == [], "root's part of sudo is not the client's process"
        ordinary = E2B(hutch_e2b.server, role="user")
        with ordinary.sandbox() as sandbox, pytest.raises(e2b.CommandExitException, match="nobody gives root"):
            sandbox.commands.run("sudo id")
    finally:
        hutch("image", "remove", "e2b-base", env=environment)
    proofs.write("e2b-base", release=release, seconds_first=taken[0], seconds_second=taken[1])
