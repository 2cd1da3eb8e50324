"""Drives LangBot's door by the client classes of `langbot-plugin`; runs in an environment that has that package.

Arguments: the server's address (host:port), a key of one owner, a key of another, a directory that LangBot and the
server share, and one that they do not.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import scenarios
import websockets
from langbot_plugin.artifact import build_tree_manifest
from langbot_plugin.box import errors, models
from langbot_plugin.box.actions import LangBotToBoxAction
from langbot_plugin.box.tenancy import box_namespace, namespace_session_id
from langbot_sdk import (
    ADDRESS,
    ECHO,
    KEY,
    TOKEN,
    attached,
    connected,
    context,
    handshake,
    refused,
    refused_by,
    relay_of,
    spec,
)

OTHER_KEY, SHARED, FOREIGN = sys.argv[3:6]


# --- connection -----------------------------------------------------------------------------------------------------


async def wrong_tokens_and_instances_are_unauthorized():
    name = "x-langbot-instance-id"
    for headers in ({name: "i"}, {name: "i", TOKEN: "x" * 40}, {TOKEN: KEY}, {name: "no blanks", TOKEN: KEY}):
        status, body = await handshake("/rpc/ws", **headers)
        assert (status, body) == (401, b"Unauthorized"), (headers, status, body)
    assert (await handshake("/rpc/ws", **{name: "i", TOKEN: KEY}))[0] == 101


async def unknown_actions_and_contexts_are_refused():
    async with connected("actions") as client:

        class Unknown:
            value = "box_nonsense"

        answer = await refused_by(client.handler.call_action(Unknown, {}))
        assert answer == "ValueError: Action box_nonsense not found", answer
        await refused(
            errors.BoxError,
            client.get_sessions(),
            "PermissionError: Box tenant action requires a trusted Workspace context",
        )
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


# --- sessions and commands ------------------------------------------------------------------------------------------


async def commands_run_in_sessions():
    async with connected("exec") as client:
        where = context("exec")
        assert await client.get_backend_info() == {"name": "hutch", "available": True}
        await client.initialize()
        done = await client.execute(spec(cmd="echo out; echo err >&2; exit 3"), where)
        assert (done.status.value, done.exit_code, done.stdout, done.stderr) == ("completed", 3, "out", "err"), done
        done = await client.execute(
            spec(cmd="pwd; cat > deep.txt <<'X'\na b\nX\ncat deep.txt", workdir="/workspace/a/b"), where
        )
        assert done.stdout == "/workspace/a/b\na b", done
        done = await client.execute(
            spec(cmd="echo $COLOUR; python3 - <<'PY'\nprint('é', 6 * 7)\nPY", env={"COLOUR": "blue"}), where
        )
        assert done.stdout == "blue\né 42", done
        done = await client.execute(spec(cmd="kill -9 $$"), where)
        assert (done.status.value, done.exit_code) == ("completed", 137), done
        await refused(errors.BoxValidationError, client.execute(spec(), where), "cmd must not be empty")


async def long_commands_and_long_output():
    async with connected("long") as client:
        where, payload = context("long"), "x" * 470_000
        done = await client.execute(spec(cmd=f"python3 - <<'PY'\nprint(len('{payload}'))\nPY\necho $?"), where)
        assert done.stdout == "470000\n0", (done.stdout[-200:], done.stderr[-200:])
        assert not (await client.execute(spec(cmd="ls -A /tmp | grep langbot"), where)).stdout
        done = await client.execute(spec(cmd="head -c 3000000 /dev/zero | tr '\\0' y; echo END"), where)
        notice = "\n... [raw output clipped at 1048576 bytes, 1951428 bytes discarded]"
        assert done.stdout.endswith("END" + notice) or done.stdout.endswith(notice), done.stdout[-200:]


async def a_timeout_keeps_the_session():
    async with connected("timeout") as client:
        where = context("timeout")
        await client.execute(spec(cmd="echo kept > /tmp/kept"), where)
        done = await client.execute(spec(cmd="echo begun; sleep 60", timeout_sec=1), where)
        assert (done.status.value, done.exit_code, done.stdout) == ("timed_out", None, "begun"), done
        assert done.stderr == "Command timed out after 1 seconds.", done
        assert (await client.execute(spec(cmd="cat /tmp/kept; pgrep sleep"), where)).stdout == "kept"


async def a_client_that_leaves_ends_its_command():
    where = context("leaves")
    async with connected("leaves") as client:
        # Both ask for a session that does not exist yet, and get the same one.
        running = asyncio.ensure_future(client.execute(spec(cmd="sleep 987"), where))
        for _ in range(200):
            found = await client.execute(spec(cmd="pgrep -f 'sleep [9]87' || true"), where)
            if found.stdout:
                break
        assert found.stdout
        running.cancel()
    async with connected("leaves") as client:
        for _ in range(200):
            found = await client.execute(spec(cmd="pgrep -f 'sleep [9]87' || true"), where)
            if not found.stdout:
                return
            await asyncio.sleep(0.05)
    raise AssertionError("the command still runs")


async def sessions_echo_what_was_asked():
    async with connected("echo") as client:
        where = context("echo")
        asked = spec("runner-1", cpus=0.5, memory_mb=300, pids_limit=77, network="off", read_only_rootfs=True)
        made = await client.create_session(asked, where)
        listed = await client.get_sessions(where)
        assert [each["session_id"] for each in listed] == ["runner-1"], listed
        for session in (made, listed[0], await client.get_session("runner-1", where)):
            for name in (
                "image",
                "network",
                "cpus",
                "memory_mb",
                "pids_limit",
                "read_only_rootfs",
                "persistent",
                "mount_path",
            ):
                value = getattr(asked, name)
                assert session[name] == getattr(value, "value", value), (name, session)
            assert session["status"] in ("idle", "running") and session["backend_name"] == "hutch"
            assert session["created_at"] <= session["last_used_at"]
        status = await client.get_status(where)
        assert status["backend"] == {"name": "hutch", "available": True} and status["active_sessions"] == 1, status
        assert status["capacity"] == {"limit": 64, "used": 1, "remaining": 63} and status["session_ttl_sec"] == 300
        await client.delete_session("runner-1", where)
        assert await client.get_sessions(where) == []
        await refused(errors.BoxSessionNotFoundError, client.delete_session("runner-1", where), "not found")
        await refused(
            errors.BoxSessionNotFoundError, client.get_session("nobody", where), namespace_session_id(where, "nobody")
        )


async def other_specs_conflict():
    async with connected("conflict") as client:
        where = context("conflict")
        await client.create_session(spec(), where)
        physical = namespace_session_id(where, "s")
        for field, value, kept in (
            ("memory_mb", 600, 512),
            ("network", "on", "off"),
            ("persistent", True, False),
            ("cpus", 2.0, 1.0),
        ):
            text = f"BoxSessionConflictError: Box session {physical} already exists with {field}={kept}"
            await refused(errors.BoxSessionConflictError, client.create_session(spec(**{field: value}), where), text)
        mount = {"host_path": f"{SHARED}/x", "mount_path": "/mnt/x", "mode": "ro"}
        await refused(
            errors.BoxSessionConflictError,
            client.create_session(spec(extra_mounts=[mount]), where),
            "Box mounts differ",
        )
        assert (await client.execute(spec(cmd="echo same"), where)).stdout == "same"


async def bad_specs_are_refused():
    async with connected("bad") as client:
        where = context("bad")
        for wrong in (
            {"session_id": "s", "surprise": 1}, {"session_id": " "}, {}, {"session_id": "s", "timeout_sec": 0},
            {"session_id": "s", "memory_mb": 16}, {"session_id": "s", "cpus": 0}, {"session_id": "s", "pids_limit": 0},
            {"session_id": "s", "workdir": "relative"}, {"session_id": "s", "host_path": "relative"},
            {"session_id": "s", "network": "some"}, {"session_id": "s", "env": {"A": 1}}, {"session_id": "!!!"},
            {"session_id": "s" * 500}, {"session_id": "s", "mount_path": "/elsewhere"},
            {"session_id": "s", "host_path": "/a", "workdir": "/tmp"},
            {"session_id": "s", "host_path": "/" + "a" * 5000},
            {"session_id": "s", "extra_mounts": [{"host_path": "/x", "mount_path": "/opt/langbot-artifacts/y"}]},
            {"session_id": "s", "extra_mounts": [{"host_path": "/etc", "mount_path": "/mnt/etc", "mode": "ro"}]},
        ):  # fmt: skip
            call = client.handler.call_action(LangBotToBoxAction.EXEC, {"cmd": "id", **wrong}, action_context=where)
            assert "BoxValidationError: " in await refused_by(call), wrong
        assert await client.get_sessions(where) == []


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


async def workspaces_are_apart_and_kept():
    first, second = context("files", "w1"), context("files", "w2")
    path = f"{FOREIGN}/tenants/{box_namespace(first)}"
    async with connected("files") as client:
        await client.execute(spec("a", "echo one > file", host_path=path), first)
        assert (await client.execute(spec("b", "cat file", host_path=path), first)).stdout == "one"
        other = await client.execute(spec("a", "cat file", host_path=path), second)
        assert other.exit_code == 1, other
        done = await client.execute(spec("ro", "cat file; echo two > file", host_path=path, host_path_mode="ro"), first)
        assert done.stdout == "one" and "Read-only" in done.stderr, done
        report = await client.get_storage_analysis(first)
        keys = {each["key"]: each for each in report["directories"]}
        assert (
            keys["workspace"]["exists"] and keys["workspace"]["file_count"] >= 1 and report["active_sessions"] == 3
        ), report
        await client.shutdown()
    async with connected("files") as client:
        assert await client.get_sessions(first) == []
        assert (await client.execute(spec("a", "cat file", host_path=path), first)).stdout == "one"
    assert not os.path.exists(path), "a path of another machine was made"


async def shared_directories_are_mounted():
    where = context("shared")
    path = f"{SHARED}/box/tenants/{box_namespace(where)}"
    async with connected("shared") as client:
        await client.execute(spec("a", "echo from the box > out.txt", host_path=path), where)
        assert Path(path, "out.txt").read_text() == "from the box\n"
        Path(path, "in.txt").write_text("from LangBot\n")
        done = await client.execute(spec("a", "cat in.txt; echo more >> in.txt; tail -1 in.txt", host_path=path), where)
        assert done.stdout == "from LangBot\nmore", done
        for wrong in (f"{SHARED}/../outside", f"{SHARED}/link/x"):
            answer = await refused_by(client.execute(spec("b", "id", host_path=wrong), where))
            assert "accepted" not in answer or not os.path.exists(wrong), answer


async def skills_are_shown_read_only():
    where = context("skills")
    path = f"{SHARED}/box/tenants/{box_namespace(where)}"

    def skill(name):
        package = Path(SHARED, "skills", name)
        package.mkdir(parents=True)
        (package / "lib").mkdir()
        (package / "SKILL.md").write_text(f"# {name}\n")
        (package / "lib" / "run.sh").write_text(f"#!/bin/sh\necho run {name}\n")
        (package / "lib" / "run.sh").chmod(0o755)
        digest, manifest = build_tree_manifest(str(package), max_files=100, max_total_bytes=1 << 20)
        file = Path(SHARED, "skills", f"{name}.json")
        file.write_text(json.dumps(manifest))
        target = f"/opt/langbot-artifacts/{digest[7:]}"
        return models.BoxMountSpec(
            host_path=str(package), mount_path=target, mode="ro", content_digest=digest, manifest_path=str(file)
        )

    async with connected("skills") as client:
        one, two = skill("one"), skill("two")
        await client.execute(spec("a", "true", host_path=path), where)
        asked = spec("a", f"{one.mount_path}/lib/run.sh; touch {one.mount_path}/x", host_path=path, extra_mounts=[one])
        done = await client.execute(asked, where)
        assert done.stdout == "run one" and done.exit_code == 1, done
        both = spec(
            "a", f"{one.mount_path}/lib/run.sh; {two.mount_path}/lib/run.sh", host_path=path, extra_mounts=[one, two]
        )
        assert (await client.execute(both, where)).stdout == "run one\nrun two"
        three = skill("three")
        Path(three.host_path, "SKILL.md").write_text("changed\n")
        text = "BoxError: Immutable artifact preparation failed: Artifact source changed: SKILL.md"
        await refused(
            errors.BoxError, client.execute(spec("a", "true", host_path=path, extra_mounts=[three]), where), text
        )
        foreign = three.model_copy(update={"host_path": f"{FOREIGN}/skill", "manifest_path": f"{FOREIGN}/skill.json"})
        text = "BoxError: Immutable artifact preparation failed: "
        for asked in (spec("a", "true", host_path=path, extra_mounts=[foreign]), spec("b", "true", extra_mounts=[one])):
            await refused(errors.BoxError, client.execute(asked, where), text)


# --- life -----------------------------------------------------------------------------------------------------------


async def a_session_stays_for_others_to_see():
    async with connected("visible") as client:
        await client.create_session(spec("runner-1", memory_mb=300, pids_limit=77), context("visible"))


async def a_newer_generation_retires_older_ones():
    async with connected("fence") as client:
        old, new = context("fence", generation=1), context("fence", generation=2)
        await client.create_session(spec("a"), old)
        await client.create_session(spec("a"), new)
        await refused(errors.BoxError, client.get_sessions(old), "PermissionError: Stale Box placement generation")
        assert len(await client.get_sessions(new)) == 1
        assert (await client.get_status(new))["capacity"]["used"] == 1


async def a_shutdown_ends_only_its_own_sessions():
    async with connected("mine") as mine, connected("yours") as yours:
        await mine.create_session(spec("a"), context("mine"))
        await yours.execute(spec("a", "echo kept > /tmp/x"), context("yours"))
        await mine.shutdown()
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


# --- managed processes ----------------------------------------------------------------------------------------------


async def processes_are_managed():
    async with connected("proc") as client:
        where = context("proc")
        await client.create_session(spec("mcp-shared", persistent=True), where)
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
        status, body = await handshake(
            *[relay_of(where, "mcp-shared", "default")[0]], **relay_of(where, "mcp-shared", "default")[1]
        )
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
            try:
                await ws.recv()
                raise AssertionError("the relay goes on")
            except websockets.exceptions.ConnectionClosed as closed:
                assert closed.rcvd is not None and closed.rcvd.code == 1000, closed
            await stopped


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
        wrong_tokens_and_instances_are_unauthorized, unknown_actions_and_contexts_are_refused,
        malformed_frames_do_not_end_the_channel, too_many_requests_at_once_are_refused, commands_run_in_sessions,
        long_commands_and_long_output, a_timeout_keeps_the_session, a_client_that_leaves_ends_its_command,
        sessions_echo_what_was_asked, other_specs_conflict, bad_specs_are_refused, capacity_is_limited,
        quotas_of_the_owner_hold, workspaces_are_apart_and_kept, shared_directories_are_mounted,
        skills_are_shown_read_only, a_session_stays_for_others_to_see, a_newer_generation_retires_older_ones,
        a_shutdown_ends_only_its_own_sessions, cloud_actions_are_refused, processes_are_managed,
        the_relay_sends_one_line_in_each_frame, relays_are_authorized,
    ])  # fmt: skip
