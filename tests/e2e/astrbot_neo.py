"""AstrBot's own booter `shipyard_neo` and its sandbox layer, without the application. Arguments: address, key."""

import os
import sys
from pathlib import Path

import scenarios

ADDRESS, KEY = sys.argv[1:3]
os.environ["ASTRBOT_ROOT"] = os.getcwd()
Path("data/skills/greet").mkdir(parents=True)
Path("data/skills/greet/SKILL.md").write_text("---\nname: greet\ndescription: Greets\n---\nSay hello.\n")
from astrbot.core.computer import computer_client  # noqa: E402

SANDBOX = {
    "booter": "shipyard_neo", "shipyard_neo_endpoint": f"http://{ADDRESS}/bay", "shipyard_neo_access_token": KEY,
    "shipyard_neo_profile": "python-default", "shipyard_neo_ttl": 3600,
}  # fmt: skip


class Context:
    """All that the sandbox layer asks of AstrBot."""

    def get_config(self, umo=None):
        return {"provider_settings": {"computer_use_runtime": "sandbox", "sandbox": SANDBOX}}


async def the_booter_works():
    chat = "webchat:FriendMessage:one"
    booter = await computer_client.get_booter(Context(), chat)
    assert await booter.available()
    done = await booter.shell.exec("echo out; ls skills")
    assert "out" in done["stdout"] and "greet" in done["stdout"], done
    done = await booter.shell.exec("exit 3")
    assert done["exit_code"] == 3 and not done["success"], done
    done = await booter.python.exec("x = 41\nprint('set')")
    assert done["data"]["output"]["text"].strip() == "set", done
    done = await booter.python.exec("x + 1")
    assert done["data"]["output"]["text"].strip() == "42", done
    await booter.fs.write_file("notes/a.txt", "one\ntwo\n")
    assert "two" in str(await booter.fs.read_file("notes/a.txt"))
    await booter.fs.edit_file("notes/a.txt", "two", "2")
    assert "2" in str(await booter.fs.search_files("2", path="notes"))
    Path("local.bin").write_bytes(b"\x00\x01")
    await booter.upload_file("local.bin", "remote.bin")
    await booter.download_file("remote.bin", "back.bin")
    assert Path("back.bin").read_bytes() == b"\x00\x01"
    started = await booter.shell.exec("sleep 0.1; echo late > late.txt", background=True)
    assert started.get("pid"), started
    assert await computer_client.get_booter(Context(), chat) is booter
    other = await computer_client.get_booter(Context(), "webchat:FriendMessage:two")
    assert not (await other.shell.exec("ls notes"))["success"], "another chat sees the files"


async def browsers_are_not_offered():
    booter = await computer_client.get_booter(Context(), "webchat:FriendMessage:one")
    assert "browser" not in (booter.capabilities or ()), booter.capabilities


scenarios.run([the_booter_works, browsers_are_not_offered])
