"""A machine whose control groups are all of version 2: boxes are cloned right into theirs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a mount namespace of its own the program sees the unified hierarchy alone, as on most machines of today.
UNIFIED = """
import asyncio, json, os
from hutch.model.ids import new_box_id
from hutch.model.spec import Order
from hutch.providers.base import Command
from hutch.linux import kernel; from hutch.providers.native import orders
from hutch.providers.native.provider import NativeProvider

async def main(provider):
    for _ in range(4):  # from a cold zygote first, from a prestarted child in the end
        order = Order(box_id=new_box_id(), keeper="unified", spec=orders.canary_spec())
        box = await provider.create(order, provider.plan(order))
        await box.pause()
        await box.resume()
        result = await box.run(Command(command=("id", "-u")))
        groups, pid = box.record.data["groups"], box.record.data["pid"]
        members = open(f"{groups[0]}/cgroup.procs").read().split()
        print(json.dumps({"groups": groups, "joined": str(pid) in members, "said": result.stdout}))
        await box.close()
        await provider.destroy(box.record)
    await provider.close()

kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kernel.syscall("umount2", b"/sys/fs/cgroup", kernel.MNT_DETACH)
kernel.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, None)
asyncio.run(main(NativeProvider(state_dir=os.path.abspath("s"), run_dir=os.path.abspath("r"))))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to an ordinary user no part of cgroup v2 is delegated")
def test_boxes_are_created_in_their_v2_groups(tmp_path: Path) -> None:
    """clone3 takes the group, and no exit signal beside CLONE_PARENT; pause and its end reach the group."""
    done = subprocess.run([sys.executable, "-c", UNIFIED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    boxes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(boxes) == 4
    for box in boxes:
        assert (len(box["groups"]), box["joined"], box["said"]) == (1, True, "1000\n")
        assert box["groups"][0].startswith("/sys/fs/cgroup/")
