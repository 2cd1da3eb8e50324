"""LangBot's sessions: their commands, their life, and the specs that fit or do not.

It drives the door by the client classes of `langbot-plugin`. Arguments: the server's address (host:port), a key of one
owner, a key of another, and a directory that LangBot and the server share.
"""

import asyncio
import sys

import scenarios
from langbot_plugin.box import errors
from langbot_plugin.box.actions import LangBotToBoxAction
from langbot_plugin.box.tenancy import namespace_session_id
from langbot_sdk import called, connected, context, refused, refused_by, spec

SHARED = sys.argv[4]
DEFAULT_IMAGE = spec().image


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
        limit = 'LANGBOT_OUTBOX_LIMIT:{"max": 1}'
        done = await client.execute(spec(cmd=f"echo '{limit}' >&2; exit 73"), where)
        assert (done.exit_code, done.stderr) == (73, limit), done
        done = await client.execute(spec(cmd="printf '\\377last'"), where)
        assert done.stdout == "\ufffdlast", done
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
            ("memory_mb", 600, 512), ("network", "on", "off"), ("persistent", True, False), ("cpus", 2.0, 1.0),
            ("pids_limit", 64, 128), ("read_only_rootfs", False, True), ("workspace_quota_mb", 9, 0),
            ("host_path", "/elsewhere", None), ("host_path_mode", "ro", "rw"), ("image", "other:1", DEFAULT_IMAGE),
        ):  # fmt: skip
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
            {"session_id": "s", "host_path": "/" + "a" * 5000}, {"session_id": "s", "host_path": f"{SHARED}/a\0b"},
            {"session_id": "s", "timeout_sec": 10**30}, {"session_id": "s", "memory_mb": 10**30},
            {"session_id": "s", "extra_mounts": [{"host_path": "/x", "mount_path": "/opt/langbot-artifacts/y"}]},
            {"session_id": "s", "extra_mounts": [{"host_path": "/etc", "mount_path": "/mnt/etc", "mode": "ro"}]},
        ):  # fmt: skip
            call = client.handler.call_action(LangBotToBoxAction.EXEC, {"cmd": "id", **wrong}, action_context=where)
            answer = await refused_by(call)
            assert "BoxValidationError: " in answer, (wrong, answer)
        for image in ("no/such:1", "tar:/no/such.tar", "dir:/etc", "host; id"):
            await refused(errors.BoxValidationError, client.execute(spec(cmd="id", image=image), where))
        assert await client.get_sessions(where) == []


async def a_session_stays_for_others_to_see():
    async with connected("visible") as client:
        await client.create_session(spec("runner-1", memory_mb=300, pids_limit=77), context("visible"))


async def a_session_that_broke_is_made_anew():
    """Somebody destroys the session's box; LangBot does not notice, because the next command begins another one."""
    async with connected("broken") as client:
        where = context("broken")
        made = await client.create_session(spec(), where)
        await asyncio.to_thread(called, "DELETE", f"/v1/boxes/{made['backend_session_id']}", "broken")
        await refused(errors.BoxSessionNotFoundError, client.get_session("s", where))
        assert (await client.execute(spec(cmd="echo again"), where)).stdout == "again"


if __name__ == "__main__":
    scenarios.run([
        commands_run_in_sessions, long_commands_and_long_output, a_timeout_keeps_the_session,
        a_client_that_leaves_ends_its_command, sessions_echo_what_was_asked, other_specs_conflict,
        bad_specs_are_refused, a_session_that_broke_is_made_anew, a_session_stays_for_others_to_see,
    ])  # fmt: skip
