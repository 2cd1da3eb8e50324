"""LangBot's channel: who may connect, frames, limits, generations and the end of one LangBot.

It drives the door by the client classes of `langbot-plugin`. Arguments: the server's address (host:port), a key of one
owner, and a key of another.
"""

import asyncio
import json
import sys
import types

import scenarios
import websockets
from langbot_plugin.box import errors, models
from langbot_sdk import (
    ADDRESS,
    ECHO,
    KEY,
    TOKEN,
    attached,
    called,
    closes,
    connected,
    context,
    handshake,
    refused,
    refused_by,
    relay_of,
    spec,
)

OTHER_KEY = sys.argv[3]


async def wrong_tokens_and_instances_are_unauthorized():
    name = "x-langbot-instance-id"
    for headers in ({name: "i"}, {name: "i", TOKEN: "x" * 40}, {TOKEN: KEY}, {name: "no blanks", TOKEN: KEY}):
        status, body = await handshake("/rpc/ws", **headers)
        assert (status, body) == (401, b"Unauthorized"), (headers, status, body)
    assert (await handshake("/rpc/ws", **{name: "i", TOKEN: KEY}))[0] == 101


async def unknown_actions_and_contexts_are_refused():
    async with connected("actions") as client:
        unknown = types.SimpleNamespace(value="box_nonsense")
        answer = await refused_by(client.handler.call_action(unknown, {}))
        assert answer == "ValueError: Action box_nonsense not found", answer
        await refused(
            errors.BoxError,
            client.get_sessions(),
            "PermissionError: Box tenant action requires a trusted Workspace context",
        )
        answer = await refused_by(client.handler.call_action(unknown, {}, action_context=context("another")))
        assert answer == "ValueError: Action box_nonsense not found", answer
        text = "PermissionError: Box action context does not match the trusted instance"
        await refused(errors.BoxError, client.get_sessions(context("another")), text)


async def malformed_frames_do_not_end_the_channel():
    headers = {"x-langbot-instance-id": "frames", TOKEN: KEY}
    async with websockets.connect(
        f"ws://{ADDRESS}/rpc/ws", additional_headers=headers, proxy=None, max_size=None
    ) as ws:
        for frame in (
            "no json",
            "[]",
            "{}",
            '{"seq_id": 1}',
            '{"code": 0, "seq_id": 4, "message": "", "data": {}}',
            "[" * 100_000,
        ):
            await ws.send(frame)
        await ws.send('{"seq_id": 7, "action": "box_exec", "data": [], "context": {}}')
        answer = json.loads(await ws.recv())
        assert answer["seq_id"] == 7 and answer["code"] == 1, answer
        # What Python writes for bytes that are no text; msgspec reads no such string.
        await ws.send('{"seq_id": 6, "action": "box_exec", "data": {"cmd": "\\udcff"}}')
        answer = json.loads(await ws.recv())
        assert answer["seq_id"] == 6 and answer["code"] == 1, answer
        await ws.send(b'{"seq_id": 8, "action": "__ping", "data": {}}')
        expected = {"seq_id": 8, "code": 0, "message": "success", "data": {}, "chunk_status": "continue"}
        assert json.loads(await ws.recv()) == expected
        # A message in many fragments is one message.
        await ws.send(["{", '"seq_id": 9, "action": ', '"__ping"', ', "data": {}}'])
        assert json.loads(await ws.recv())["seq_id"] == 9
        try:
            await ws.send("x" * (17 << 20))
            await ws.recv()
            raise AssertionError("17 MB were taken")
        except websockets.exceptions.ConnectionClosed as closed:
            assert closed.rcvd is None or closed.rcvd.code == 1009, closed


async def too_many_requests_at_once_are_refused():
    headers = {"x-langbot-instance-id": "busy", TOKEN: KEY}
    where = {"instance_uuid": "busy", "workspace_uuid": "w", "placement_generation": 1}
    async with websockets.connect(f"ws://{ADDRESS}/rpc/ws", additional_headers=headers, proxy=None) as ws:
        for number in range(140):
            data = {"session_id": "s", "cmd": "sleep 1"}
            await ws.send(json.dumps({"seq_id": number, "action": "box_exec", "data": data, "context": where}))
        answers = [json.loads(await ws.recv()) for _ in range(140)]
    busy = [each for each in answers if "Runtime connection is busy (max 128 concurrent actions)" in each["message"]]
    assert busy and all(each["code"] == 1 for each in busy), answers[:2]
    assert {each["seq_id"] for each in answers} == set(range(140))


async def capacity_is_limited():
    config = {"limits": {"max_sessions": 2, "max_managed_processes": 1}}
    async with connected("capacity", config=config) as client:
        where = context("capacity")
        await client.create_session(spec("a"), where)
        await client.create_session(spec("b"), where)
        text = "BoxCapacityExceededError: Box session capacity reached (2)"
        await refused(errors.BoxCapacityExceededError, client.create_session(spec("c"), where), text)
        sleeper = models.BoxManagedProcessSpec(process_id="one", command="sleep", args=["60"])
        await client.start_managed_process("a", sleeper, where)
        await client.start_managed_process("a", sleeper, where)
        other = models.BoxManagedProcessSpec(process_id="two", command="sleep", args=["60"])
        text = "Box managed process capacity reached (1)"
        await refused(errors.BoxCapacityExceededError, client.start_managed_process("b", other, where), text)
        assert (await client.get_status(where))["managed_processes"] == 1
        await refused(
            errors.BoxError, client.init({"limits": {"max_sessions": 0}}), "ValueError: box.limits.max_sessions must be"
        )


async def quotas_of_the_owner_hold():
    """The other owner may have two boxes (`[quotas]`), however many LangBot allows itself."""
    async with connected("quota", key=OTHER_KEY) as client:
        where = context("quota")
        await client.create_session(spec("a"), where)
        await client.create_session(spec("b"), where)
        await refused(
            errors.BoxCapacityExceededError, client.create_session(spec("c"), where), "BoxCapacityExceededError: "
        )
        await client.shutdown()


async def a_newer_generation_retires_older_ones():
    async with connected("fence") as client:
        old, new = context("fence", generation=1), context("fence", generation=2)
        await client.create_session(spec("a"), old)
        process = models.BoxManagedProcessSpec(process_id="p", command="python3", args=["-c", ECHO])
        await client.start_managed_process("a", process, old)
        running = asyncio.ensure_future(refused_by(client.execute(spec("a", "sleep 600", timeout_sec=600), old)))
        path, headers = relay_of(old, "a", "p")
        async with attached(path, headers) as relay:
            await relay.send("up")
            assert (await relay.recv()).strip() == "<up>"
            await client.create_session(spec("a"), new)
            await closes(relay)
        assert "accepted" not in await running, "a command of the older generation ended well"
        assert (await handshake(path, **headers))[0] == 400
        await refused(errors.BoxError, client.get_sessions(old), "PermissionError: Stale Box placement generation")
        assert len(await client.get_sessions(new)) == 1
        assert (await client.get_status(new))["capacity"]["used"] == 1


async def a_shutdown_ends_only_its_own_sessions():
    async with connected("mine") as mine, connected("yours") as yours:
        await mine.create_session(spec("a"), context("mine"))
        await yours.execute(spec("a", "echo kept > /tmp/x"), context("yours"))
        # Neither a fork of a session nor a box that bears a label of one is a session.
        made = (await mine.get_sessions(context("mine")))[0]["backend_session_id"]
        fork = (await asyncio.to_thread(called, "POST", f"/v1/boxes/{made}/fork", "mine"))["boxes"][0]["id"]
        named = (await asyncio.to_thread(called, "POST", "/v1/boxes", "mine", labels={"langbot.session": "a"}))["id"]
        assert len(await mine.get_sessions(context("mine"))) == 1
        await mine.shutdown()
        for box in (fork, named):
            assert (await asyncio.to_thread(called, "GET", f"/v1/boxes/{box}", "mine"))["state"] == "running"
            await asyncio.to_thread(called, "DELETE", f"/v1/boxes/{box}?force=true", "mine")
        assert (await yours.execute(spec("a", "cat /tmp/x"), context("yours"))).stdout == "kept"
    async with connected("mine") as mine:
        assert await mine.get_sessions(context("mine")) == []
        assert (await mine.execute(spec("a", "echo again"), context("mine"))).stdout == "again"
    async with connected("mine", key=OTHER_KEY) as stranger:
        assert await stranger.get_sessions(context("mine")) == []
        await stranger.shutdown()
    async with connected("mine") as mine:
        assert len(await mine.get_sessions(context("mine"))) == 1


async def cloud_actions_are_refused():
    async with connected("cloud") as client:
        await refused(
            errors.BoxAdmissionError,
            client.verify_shared_workspace("x"),
            "Sandbox admission enforcement is not enabled",
        )
        for action in ("box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant"):
            call = client.handler.call_action(types.SimpleNamespace(value=action), {"workspace_uuid": "w"})
            answer = await refused_by(call)
            assert answer == "BoxAdmissionError: Sandbox admission enforcement is not enabled", answer


if __name__ == "__main__":
    scenarios.run([
        wrong_tokens_and_instances_are_unauthorized, unknown_actions_and_contexts_are_refused,
        malformed_frames_do_not_end_the_channel, too_many_requests_at_once_are_refused, capacity_is_limited,
        quotas_of_the_owner_hold, a_newer_generation_retires_older_ones, a_shutdown_ends_only_its_own_sessions,
        cloud_actions_are_refused,
    ])  # fmt: skip
