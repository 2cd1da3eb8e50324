"""LangBot's managed processes and their relay.

It drives the door by the client classes of `langbot-plugin`. Arguments: the server's address (host:port), a key of one
owner, and a key of another.
"""

import asyncio
import json
import sys

import scenarios
from langbot_plugin.box import errors, models
from langbot_plugin.box.tenancy import namespace_session_id
from langbot_sdk import (
    ADDRESS,
    ECHO,
    TOKEN,
    attached,
    closes,
    connected,
    context,
    handshake,
    refused,
    relay_of,
    spec,
)

OTHER_KEY = sys.argv[3]


async def processes_are_managed():
    async with connected("proc") as client:
        where = context("proc")
        made = await client.create_session(spec("mcp-shared", persistent=True, read_only_rootfs=False), where)
        assert made["read_only_rootfs"] is False, made
        wanted = models.BoxManagedProcessSpec(
            process_id="p1", command="python3", args=["-c", ECHO], env={"B": "2", "A": "1"}, cwd="/workspace"
        )
        info = await client.start_managed_process("mcp-shared", wanted, where)
        assert (info.status.value, info.command, info.env_keys, info.attached) == (
            "running",
            "python3",
            ["A", "B"],
            False,
        ), info
        for _ in range(200):
            info = await client.get_managed_process("mcp-shared", "p1", where)
            if info.stderr_preview:
                break
            await asyncio.sleep(0.05)
        assert info.stderr_preview.strip() == "ready" and info.exit_code is None, info
        session = await client.get_session("mcp-shared", where)
        assert session["persistent"] is True and list(session["managed_processes"]) == ["p1"], session
        await client.stop_managed_process("mcp-shared", "p1", where)
        text = f"session {namespace_session_id(where, 'mcp-shared')} has no managed process with process_id=p1"
        await refused(
            errors.BoxManagedProcessNotFoundError, client.stop_managed_process("mcp-shared", "p1", where), text
        )
        await client.start_managed_process(
            "mcp-shared", models.BoxManagedProcessSpec(command="sh", args=["-c", "echo bad >&2; exit 4"]), where
        )
        for _ in range(200):
            info = await client.get_managed_process("mcp-shared", action_context=where)
            if info.status.value == "exited":
                break
            await asyncio.sleep(0.05)
        assert (info.exit_code, info.stderr_preview.strip()) == (4, "bad") and info.exited_at, info
        path, headers = relay_of(where, "mcp-shared", "default")
        status, body = await handshake(path, **headers)
        assert status == 400 and json.loads(body)["error"]["code"] == "BoxManagedProcessConflictError", body
        missing = models.BoxManagedProcessSpec(command="no-such-program")
        await refused(errors.BoxError, client.start_managed_process("mcp-shared", missing, where), "no-such-program")


async def the_relay_sends_one_line_in_each_frame():
    async with connected("relay") as client:
        where = context("relay")
        await client.create_session(spec("mcp-shared", persistent=True), where)
        await client.start_managed_process(
            "mcp-shared", models.BoxManagedProcessSpec(process_id="p", command="python3", args=["-c", ECHO]), where
        )
        path, headers = relay_of(where, "mcp-shared", "p")
        url = client.get_managed_process_websocket_url("mcp-shared", f"http://{ADDRESS}", "p", where)
        assert url == f"ws://{ADDRESS}{path}", url
        async with attached(path, headers) as ws:
            assert ws.subprotocol == "mcp"
            await ws.send("one")
            await ws.send('{"two": "ü"}')
            assert [(await ws.recv()).strip(), (await ws.recv()).strip()] == ["<one>", '<{"two": "ü"}>']
            long = "x" * 300_000
            await ws.send(long)
            assert (await ws.recv()).strip() == f"<{long}>"
            assert (await client.get_managed_process("mcp-shared", "p", where)).attached
        async with attached(path, headers) as ws:
            await ws.send("again")
            assert (await ws.recv()).strip() == "<again>"
            stopped = asyncio.ensure_future(client.stop_managed_process("mcp-shared", "p", where))
            await closes(ws)
            await stopped


async def one_client_at_a_time_is_attached():
    async with connected("turns") as client:
        where = context("turns")
        await client.create_session(spec("s"), where)
        process = models.BoxManagedProcessSpec(command="python3", args=["-c", ECHO])
        await client.start_managed_process("s", process, where)
        path, headers = relay_of(where, "s", "default")
        legacy = path.replace("/default/ws", "/ws")
        async with attached(legacy, headers) as first, attached(path, headers) as second:
            await first.send("first")
            await second.send("second")
            assert (await first.recv()).strip() == "<first>"
            await first.close()
            assert (await second.recv()).strip() == "<second>", "the second client lost its line"
            await client.delete_session("s", where)
            await closes(second)


async def a_process_is_replaced_by_the_next_of_its_id():
    async with connected("twice") as client:
        where = context("twice")
        await client.create_session(spec("s"), where)
        for name in ("one", "two"):
            args = ["-c", f"echo {name} >&2; exec sleep 600"]
            await client.start_managed_process("s", models.BoxManagedProcessSpec(command="sh", args=args), where)
        for _ in range(400):
            info = await client.get_managed_process("s", action_context=where)
            if info.stderr_preview:
                break
            await asyncio.sleep(0.05)
        assert info.stderr_preview.strip() == "two", info
        assert (await client.execute(spec("s", "pgrep -c sleep"), where)).stdout == "1"
        # The client recognises an error by its class anywhere in the text, so texts are cleared of other names.
        trap = models.BoxManagedProcessSpec(process_id="q", command="BoxAdmissionError: x")
        await refused(errors.BoxError, client.start_managed_process("s", trap, where), "BoxAdmissionError x")


async def memory_that_runs_out_is_exit_code_137():
    async with connected("oom") as client:
        where = context("oom")
        await client.create_session(spec("s", memory_mb=64, workspace_quota_mb=64), where)
        process = models.BoxManagedProcessSpec(command="python3", args=["-c", "x = bytearray(1 << 30)"])
        await client.start_managed_process("s", process, where)
        for _ in range(1200):
            info = await client.get_managed_process("s", action_context=where)
            if info.status.value == "exited":
                break
            await asyncio.sleep(0.05)
        assert info.exit_code == 137, info


async def relays_are_authorized():
    async with connected("gate") as client:
        where = context("gate")
        await client.create_session(spec("s"), where)
        await client.start_managed_process("s", models.BoxManagedProcessSpec(process_id="p", command="cat"), where)
        path, headers = relay_of(where, "s", "p")
        assert (await handshake(path, **headers))[0] == 101
        stranger, _ = relay_of(context("another"), "s", "p")
        for wrong in (
            {**headers, TOKEN: "x" * 40},
            {**headers, "x-langbot-instance-id": "other"},
            {**headers, "x-langbot-workspace-id": ""},
            {**headers, "x-langbot-placement-generation": "x"},
        ):
            assert await handshake(path, **wrong) == (401, b"Unauthorized"), wrong
        assert (await handshake(stranger, **headers))[0] == 401
        for session, process, code in (
            ("t", "p", "BoxSessionNotFoundError"),
            ("s", "q", "BoxManagedProcessNotFoundError"),
        ):
            status, body = await handshake(relay_of(where, session, process)[0], **headers)
            assert status == 400 and json.loads(body)["error"]["code"] == code, (status, body)
        status, body = await handshake(path, **{**headers, TOKEN: OTHER_KEY})
        assert status == 400 and json.loads(body)["error"]["code"] == "BoxSessionNotFoundError", body


if __name__ == "__main__":
    scenarios.run([
        processes_are_managed, the_relay_sends_one_line_in_each_frame, one_client_at_a_time_is_attached,
        a_process_is_replaced_by_the_next_of_its_id, memory_that_runs_out_is_exit_code_137, relays_are_authorized,
    ])  # fmt: skip
