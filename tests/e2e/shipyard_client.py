"""Drives the door of the older Shipyard API by `shipyard-python-sdk`; runs in an environment that has that package.

Arguments: the server's address (host:port), a key of one owner, a key of another.
"""

import contextlib
import os
import sys
import uuid
from pathlib import Path

import aiohttp
import scenarios
from shipyard import ShipyardClient, Spec

ADDRESS, KEY, OTHER_KEY = sys.argv[1:4]
ENDPOINT = f"http://{ADDRESS}/shipyard"


@contextlib.asynccontextmanager
async def ship(session=None, key=KEY):
    async with ShipyardClient(ENDPOINT, key) as client:
        made = await client.create_ship(
            ttl=600, spec=Spec(cpus=1.0, memory="512m"), max_session_num=10, session_id=session or uuid.uuid4().hex
        )
        try:
            yield made
        finally:
            async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
                await http.delete(f"{ENDPOINT}/ship/{made.id}")


async def refused(status, work, text=""):
    try:
        answer = await work
    except Exception as error:
        assert f": {status} " in str(error) and text in str(error), error
        return
    raise AssertionError(f"not refused: {answer}")


async def a_session_has_its_own_ship():
    session = uuid.uuid4().hex
    async with ship(session) as first, ship() as other, ShipyardClient(ENDPOINT, KEY) as client:
        await first.fs.write_file("kept.txt", "kept")
        again = await client.create_ship(ttl=600, max_session_num=10, session_id=session)
        assert again.id == first.id and other.id != first.id
        assert (await again.fs.read_file("kept.txt"))["data"]["content"] == "kept"
        await refused(400, other.fs.read_file("kept.txt"))
        info = await client.get_ship(first.id)
        assert (info["status"], info["max_session_num"], info["current_session_num"], info["ttl"]) == (1, 10, 1, 600)
        assert (await first.extend_ttl(900))["ttl"] == 900
        assert await first.get_logs() == ""
        assert await client.get_ship(str(uuid.uuid4())) is None
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as http:
            listed = await (await http.get(f"{ENDPOINT}/ships")).json()
            assert {first.id, other.id} <= {each["id"] for each in listed}
            wrong = {"type": "shell/exec", "payload": {"command": "id"}}
            answer = await http.post(f"{ENDPOINT}/ship/{first.id}/exec", json=wrong, headers={"x-session-id": "other"})
            assert answer.status == 403 and (await answer.json())["detail"]
            for path in ("health", "stat", ""):
                assert (await http.get(f"{ENDPOINT}/{path}")).status == 200, path
            nowhere = f"{ENDPOINT}/ship/{uuid.uuid4()}"
            for answer in (await http.delete(nowhere), await http.post(f"{nowhere}/extend-ttl", json={"ttl": 5})):
                assert answer.status == 404 and (await answer.json())["detail"], answer
            for wrong in ({"ttl": 0}, {"ttl": "long"}, {"spec": {"cpus": -1}}):
                answer = await http.post(f"{ENDPOINT}/ship", json=wrong, headers={"x-session-id": session})
                assert answer.status == 400 and (await answer.json())["detail"], (wrong, answer)
            assert (await http.post(f"{ENDPOINT}/ship", json={})).status == 400, "a ship without a session"


async def the_shell_runs_commands():
    async with ship() as box:
        done = await box.shell.exec("echo out; echo err >&2; echo $X; pwd", env={"X": "1"})
        assert done["success"] and done["error"] is None, done
        data = done["data"]
        assert (data["success"], data["return_code"], data["stderr"]) == (True, 0, "err"), data
        assert data["stdout"] == "out\n1\n/workspace", data
        data = (await box.shell.exec("exit 3"))["data"]
        assert (data["success"], data["return_code"]) == (False, 3) and data["error"], data
        data = (await box.shell.exec("sleep 60", timeout=1))["data"]
        assert not data["success"] and "timed out" in data["error"], data
        data = (await box.shell.exec("sleep 0.1; echo late > late.txt", background=True))["data"]
        assert data["return_code"] == 0 and data["pid"], data
        for _ in range(200):
            if (await box.shell.exec("cat late.txt"))["data"]["stdout"] == "late":
                break
        else:
            raise AssertionError("the background command did not run")
        await box.shell.exec("mkdir sub")
        assert (await box.shell.exec("pwd", cwd="sub"))["data"]["stdout"] == "/workspace/sub"
        await refused(400, box.shell.exec("pwd", cwd="/etc"))
        await refused(400, box.shell.exec(""))
        for wrong in ({"command": "'open", "shell": False}, {"command": "id", "timeout": -1}, {"command": "\0"}):
            await refused(400, box._client._exec_operation(box.id, "shell/exec", wrong, box._session_id))


async def files_are_read_and_changed():
    async with ship() as box:
        await box.fs.create_file("a.txt", "one\ntwo\nthree\n")
        assert (await box.fs.read_file("a.txt", offset=2, limit=1))["data"]["content"] == "two\n"
        assert (await box.fs.write_file("a.txt", "four\n", mode="a"))["data"]["size"] == 19
        edited = (await box.fs.edit_file("/workspace/a.txt", "two", "2"))["data"]
        assert edited["replacements"] == 1, edited
        await refused(400, box.fs.edit_file("a.txt", "nothing", "x"))
        await refused(400, box.fs.edit_file("a.txt", "o", "0"))
        assert (await box.fs.edit_file("a.txt", "o", "0", replace_all=True))["data"]["replacements"] == 2
        await box.fs.write_file("umlaut.txt", "ü", encoding="latin-1")
        assert (await box.fs.read_file("umlaut.txt", encoding="latin-1"))["data"]["content"] == "ü"
        await refused(400, box.fs.read_file("a.txt", encoding="zlib"))
        await box.fs.write_file(".hidden", "x")
        names = {each["name"] for each in (await box.fs.list_dir("."))["data"]["files"]}
        assert names == {"a.txt", "umlaut.txt"}, names
        assert ".hidden" in {each["name"] for each in (await box.fs.list_dir(".", show_hidden=True))["data"]["files"]}
        await box.fs.delete_file("a.txt")
        for path in ("a.txt", "../x", "/etc/passwd", "a\0b", ""):
            await refused(400, box.fs.read_file(path))


async def files_are_transferred():
    async with ship() as box:
        data = os.urandom(1_000_000)
        Path("local.bin").write_bytes(data)
        answer = await box.upload_file("local.bin", "deep/remote.bin")
        assert answer["success"] and answer["file_path"] == "deep/remote.bin", answer
        await box.download_file("deep/remote.bin", "back.bin")
        assert Path("back.bin").read_bytes() == data
        assert (await box.shell.exec("ls -A"))["data"]["stdout"] == "deep", "an upload left something behind"
        await refused(403, box.upload_file("local.bin", "../escape"))
        assert (await box.shell.exec("ls -A"))["data"]["stdout"] == "deep", "a refused upload left something behind"
        await refused(404, box.download_file("nothing", "x"))
        await refused(403, box.download_file("/etc/passwd", "x"))


async def strangers_are_refused():
    async with (
        ship() as box,
        ShipyardClient(ENDPOINT, OTHER_KEY) as stranger,
        ShipyardClient(ENDPOINT, "wrong") as nobody,
    ):
        assert await stranger.get_ship(box.id) is None
        await refused(401, nobody.create_ship(ttl=60))
        await refused(
            400, box._client._exec_operation(box.id, "fs/format_disk", {}, box._session_id), "Unknown operation"
        )
        await refused(400, box._client._exec_operation(box.id, "shell/exec", {"command": 5}, box._session_id))
        await refused(400, stranger.create_ship(ttl=60, spec=Spec(cpus=1.0, memory="plenty")))


async def python_keeps_its_variables():
    async with ship() as box:
        done = await box.python.exec("x = 41")
        assert done["success"] and done["data"]["success"], done
        data = (await box.python.exec("print(x)\nx + 1"))["data"]
        assert data["output"]["text"].split() == ["41", "42"] and data["error"] is None, data
        data = (await box.python.exec("nothing"))["data"]
        assert not data["success"] and "NameError" in data["error"], data


if __name__ == "__main__":
    scenarios.run([
        a_session_has_its_own_ship, the_shell_runs_commands, files_are_read_and_changed, files_are_transferred,
        strangers_are_refused, python_keeps_its_variables,
    ])  # fmt: skip
