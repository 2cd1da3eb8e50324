"""Drives the Bay door by `shipyard-neo-sdk`; runs in an environment that has that package.

Arguments: the server's address (host:port), a key of one owner, a key of another, a key of one who may have one box.
"""

import asyncio
import contextlib
import sys
import time

import httpx
import scenarios
from shipyard_neo import BayClient, errors

ADDRESS, KEY, OTHER_KEY, SMALL_KEY = sys.argv[1:5]
ENDPOINT = f"http://{ADDRESS}/bay"


@contextlib.asynccontextmanager
async def sandbox(key=KEY, **options):
    async with BayClient(ENDPOINT, key) as client:
        made = await client.create_sandbox(**{"ttl": 600, **options})
        try:
            yield made
        finally:
            await made.delete()


async def refused(kind, work):
    try:
        answer = await work
    except kind as error:
        assert type(error) is kind, (type(error), error)
        assert str(error), "an error without a text"
        return error
    raise AssertionError(f"not refused: {answer}")


async def sandboxes_are_ready_at_once():
    async with httpx.AsyncClient() as http:
        health = await http.get(f"{ENDPOINT}/health")
        assert health.status_code == 200 and health.json()["status"] == "ok"
    async with BayClient(ENDPOINT, KEY) as client:
        profiles = (await client.list_profiles(detail=True)).items
        assert profiles[0].id == "python-default" and set(profiles[0].capabilities) == {"filesystem", "python", "shell"}
        made = await client.create_sandbox(profile="python-default", ttl=3600)
        assert made.status.value == "ready" and made.id.startswith("sandbox-") and made.cargo_id
        assert 3590 < made.expires_at.timestamp() - time.time() <= 3600
        assert (await client.get_sandbox(made.id)).status.value == "ready"
        assert made.id in {each.id for each in (await client.list_sandboxes(status="ready")).items}
        await made.delete()
        await made.delete()
        await refused(errors.NotFoundError, client.get_sandbox(made.id))
        await refused(errors.NotFoundError, client.get_sandbox("sandbox-000000000000"))
        await refused(errors.NotFoundError, client.http.delete("/v1/sandboxes/sandbox-000000000000"))
        forever = await client.create_sandbox()
        assert forever.expires_at is None
        await refused(errors.SandboxTTLInfiniteError, forever.extend_ttl(10))
        await forever.delete()


async def the_shell_runs_commands():
    async with sandbox() as box:
        done = await box.shell.exec("echo out; echo err >&2; pwd")
        assert (done.success, done.output, done.error, done.exit_code) == (True, "out\n/workspace", "err", 0), done
        done = await box.shell.exec("exit 7")
        assert (done.success, done.exit_code) == (False, 7), done
        await box.shell.exec("mkdir -p deep/er")
        assert (await box.shell.exec("pwd", cwd="deep/er")).output == "/workspace/deep/er"
        assert (await box.shell.exec("pwd", cwd="/workspace/deep")).output == "/workspace/deep"
        done = await box.shell.exec("sleep 60", timeout=1)
        assert (done.success, done.exit_code) == (False, -1) and "Command timed out" in done.error, done
        # A detached process outlives the command that started it, and writes where the next one reads.
        started = """python3 -c "import subprocess; print(subprocess.Popen(['bash', '-lc', 'sleep 0.2; echo late'], \
start_new_session=True, stdout=open('/tmp/late.log', 'w')).pid)" """
        assert (await box.shell.exec(started)).output.isdecimal()
        for _ in range(100):
            if (await box.shell.exec("cat /tmp/late.log")).output == "late":
                break
        else:
            raise AssertionError("the detached process did not run")
        await refused(errors.InvalidPathError, box.shell.exec("pwd", cwd="../.."))
        await refused(errors.InvalidPathError, box.shell.exec("pwd", cwd="/etc"))


async def files_are_kept_in_the_workspace():
    async with sandbox() as box:
        await box.filesystem.write_file("a/b/note.txt", "grüße\n")
        assert await box.filesystem.read_file("a/b/note.txt") == "grüße\n"
        assert await box.filesystem.read_file("/workspace/a/b/note.txt") == "grüße\n"
        await box.filesystem.write_file(".hidden", "x")
        data = bytes(range(256)) * 4000
        await box.filesystem.upload("bin/data.bin", data)
        assert await box.filesystem.download("bin/data.bin") == data
        await box.filesystem.upload("empty", b"")
        assert await box.filesystem.download("empty") == b""
        listed = {each.name: each for each in await box.filesystem.list_dir(".")}
        assert set(listed) == {"a", "bin", "empty"} and listed["a"].is_dir and listed["a"].size is None, listed
        inner = (await box.filesystem.list_dir("bin"))[0]
        assert (inner.path, inner.size) == ("bin/data.bin", len(data)), inner
        assert (await box.shell.exec("ls -A")).output.split() == [".hidden", "a", "bin", "empty"]
        await box.filesystem.delete("a")
        for work in (
            box.filesystem.read_file("a/b/note.txt"),
            box.filesystem.download("nothing"),
            box.filesystem.delete("nothing"),
            box.filesystem.list_dir("nothing"),
        ):
            await refused(errors.CargoFileNotFoundError, work)
        for path, reason in (
            ("../x", "path_traversal"),
            ("/etc/passwd", "absolute_path"),
            ("a\0b", "null_byte"),
            ("", "empty_path"),
        ):
            error = await refused(errors.InvalidPathError, box.filesystem.write_file(path, "x"))
            assert error.details["reason"] == reason, error.details
        await box.shell.exec("cd bin; mv data.bin $(printf 'data\\377')")
        assert [each.name for each in await box.filesystem.list_dir("bin")] == ["data\udcff"], "a name that is no UTF-8"
        await refused(errors.InvalidPathError, box.filesystem.upload("../x", b"x"))
        await refused(errors.InvalidPathError, box.filesystem.download("../../etc/passwd"))
        await refused(errors.ValidationError, box.filesystem.read_file("bin"))


async def history_remembers_executions():
    async with sandbox() as box:
        first = await box.shell.exec("echo one", description="the first", tags="a,b")
        await box.shell.exec("false", tags="b")
        listed = await box.get_execution_history()
        assert listed.total == 2 and [each.code for each in listed.entries] == ["false", "echo one"], listed
        assert [each.code for each in (await box.get_execution_history(success_only=True)).entries] == ["echo one"]
        assert (await box.get_execution_history(tags="a")).total == 1
        assert (await box.get_execution_history(exec_type="python")).total == 0
        assert (await box.get_execution_history(limit=1, offset=1)).entries[0].id == first.execution_id
        entry = await box.annotate_execution(first.execution_id, notes="good", description="changed")
        assert (entry.notes, entry.description, entry.tags) == ("good", "changed", "a,b"), entry
        assert (await box.get_execution(first.execution_id)).output == "one"
        assert (await box.get_last_execution()).code == "false"
        assert (await box.get_execution_history(has_notes=True)).total == 1
        await refused(errors.NotFoundError, box.get_execution("exec-nothing"))


async def clocks_move():
    async with sandbox(ttl=100) as box:
        before = box.expires_at
        await box.extend_ttl(50, idempotency_key="extend-1")
        await box.extend_ttl(50, idempotency_key="extend-1")
        await box.refresh()
        assert 49 <= (box.expires_at - before).total_seconds() <= 51, "extended twice"
        await box.keepalive()
        await box.shell.exec("echo kept > file; sleep 300 & echo $! > pid")
        await box.stop()
        await box.stop()
        await box.refresh()
        assert box.status.value == "idle" and box.idle_expires_at is None
        await box.keepalive()
        await box.refresh()
        assert box.status.value == "idle"
        assert (await box.shell.exec("cat file; kill -0 $(cat pid) || echo gone")).output == "kept\ngone"
        await box.refresh()
        assert box.status.value == "ready" and box.idle_expires_at is not None
    async with sandbox(ttl=1) as box:
        await asyncio.sleep(1.1)
        await box.refresh()
        assert box.status.value == "expired"
        await refused(errors.SandboxExpiredError, box.shell.exec("id"))
        await refused(errors.SandboxExpiredError, box.extend_ttl(10))


async def keys_make_creation_safe_to_repeat():
    async with BayClient(ENDPOINT, KEY) as client:
        made = [await client.create_sandbox(ttl=60, idempotency_key="same") for _ in range(2)]
        made += await asyncio.gather(*(client.create_sandbox(ttl=61, idempotency_key="other") for _ in range(3)))
        assert len({each.id for each in made}) == 2
        await refused(errors.ConflictError, client.create_sandbox(ttl=62, idempotency_key="same"))
        await refused(errors.ConflictError, client.create_sandbox(ttl=60, idempotency_key="not a key!"))
        for each in {each.id: each for each in made}.values():
            await each.delete()


async def cargos_outlive_sandboxes():
    async with BayClient(ENDPOINT, KEY) as client:
        cargo = await client.cargos.create()
        assert not cargo.managed and cargo.size_limit_mb == 0
        error = await refused(errors.ValidationError, client.cargos.create(size_limit_mb=100))
        assert "size_limit_mb is not supported" in str(error)
        first = await client.create_sandbox(ttl=60, cargo_id=cargo.id)
        await first.filesystem.write_file("kept.txt", "kept")
        error = await refused(errors.ConflictError, client.cargos.delete(cargo.id))
        assert error.details["active_sandbox_ids"] == [first.id]
        await first.delete()
        second = await client.create_sandbox(ttl=60, cargo_id=cargo.id)
        assert await second.filesystem.read_file("kept.txt") == "kept"
        own = await client.create_sandbox(ttl=60)
        assert own.cargo_id in {each.id for each in (await client.cargos.list(managed=True)).items}
        assert {each.id for each in (await client.cargos.list()).items} == {cargo.id}
        for each in (second, own):
            await each.delete()
        await refused(errors.NotFoundError, client.cargos.get(own.cargo_id))
        assert (await client.cargos.get(cargo.id)).id == cargo.id
        await client.cargos.delete(cargo.id)
        await refused(errors.NotFoundError, client.cargos.delete(cargo.id))
        await refused(errors.NotFoundError, client.create_sandbox(ttl=60, cargo_id=cargo.id))
        # A sandbox's own cargo that another one uses is removed with the last of them.
        own = await client.create_sandbox(ttl=60)
        await own.filesystem.write_file("shared.txt", "shared")
        guest = await client.create_sandbox(ttl=60, cargo_id=own.cargo_id)
        await own.delete()
        assert await guest.filesystem.read_file("shared.txt") == "shared"
        await guest.delete()
        await refused(errors.NotFoundError, client.cargos.get(own.cargo_id))


async def pages_have_cursors():
    async with BayClient(ENDPOINT, OTHER_KEY) as client:
        made = [await client.create_sandbox(ttl=60) for _ in range(3)]
        seen, cursor = [], None
        while True:
            page = await client.list_sandboxes(limit=2, cursor=cursor)
            seen += [each.id for each in page.items]
            cursor = page.next_cursor
            if not cursor:
                break
        assert seen == [each.id for each in made], seen
        await refused(errors.ValidationError, client.list_sandboxes(cursor="nonsense"))
        for each in made:
            await each.delete()


async def strangers_find_nothing():
    async with BayClient(ENDPOINT, "hutch_k000_wrong", max_retries=0) as nobody:
        await refused(errors.UnauthorizedError, nobody.create_sandbox(ttl=60))
        await refused(errors.UnauthorizedError, nobody.list_profiles())
    async with sandbox() as box, BayClient(ENDPOINT, OTHER_KEY) as stranger:
        await refused(errors.NotFoundError, stranger.get_sandbox(box.id))
        await refused(errors.NotFoundError, stranger.http.delete(f"/v1/sandboxes/{box.id}"))
        await refused(errors.NotFoundError, stranger.cargos.get(box.cargo_id))
        await refused(errors.NotFoundError, stranger.create_sandbox(ttl=60, cargo_id=box.cargo_id))
        assert (await box.shell.exec("echo untouched")).output == "untouched"


async def bad_requests_name_their_fault():
    async with BayClient(ENDPOINT, KEY) as client:
        error = await refused(errors.ValidationError, client.create_sandbox(profile="no-such-profile"))
        assert "Invalid profile: no-such-profile" in str(error)
        await refused(errors.NotFoundError, client.skills.list_releases())
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "req-1"}
    async with sandbox() as box, httpx.AsyncClient(base_url=ENDPOINT, headers=headers) as http:
        place = f"/v1/sandboxes/{box.id}"
        for method, path, body, status, code in (
            ("POST", "/v1/sandboxes", b"{", 400, "validation_error"),
            ("POST", "/v1/sandboxes", b'{"ttl": "long"}', 400, "validation_error"),
            ("POST", "/v1/sandboxes", b'{"ttl": -5}', 400, "validation_error"),
            ("POST", "/v1/sandboxes", b'{"ttl": 999999999999}', 400, "validation_error"),
            ("POST", f"{place}/extend_ttl", b'{"extend_by": 315360000}', 400, "validation_error"),
            ("PUT", f"{place}/filesystem/files", b'{"path": "a", "content": "\\ud800"}', 400, "validation_error"),
            ("GET", f"{place}/filesystem/files?path=%ff", b"", 404, "file_not_found"),
            ("GET", f"{place}/filesystem/files?path=%2e%2e/x", b"", 400, "invalid_path"),
            ("POST", f"{place}/shell/exec", b'{"command": "id \\u0000"}', 400, "validation_error"),
            ("POST", f"{place}/shell/exec", b'{"command": "id", "cwd": "a/../../.."}', 400, "invalid_path"),
            ("POST", f"{place}/shell/exec", b'{"command": "id", "timeout": 301}', 400, "validation_error"),
            ("POST", f"{place}/shell/exec", b'{"command": ""}', 400, "validation_error"),
            ("POST", f"{place}/browser/exec", b'{"cmd": "open x"}', 400, "capability_not_supported"),
            ("POST", f"{place}/browser/exec_batch", b'{"commands": []}', 400, "capability_not_supported"),
            ("POST", f"{place}/browser/skills/x/run", b"{}", 400, "capability_not_supported"),
            ("GET", f"{place}/browser/traces/x", b"", 400, "capability_not_supported"),
            ("POST", "/v1/skills/candidates", b'{"skill_key": "x"}', 404, "not_found"),
            ("DELETE", f"{place}/filesystem/files?path=.", b"", 400, "validation_error"),
            ("POST", f"{place}/shell/exec", b'{"command": "id", "timeout": 0}', 400, "validation_error"),
            ("POST", f"{place}/extend_ttl", b'{"extend_by": 0}', 400, "validation_error"),
            ("POST", f"{place}/filesystem/upload", b"no form", 400, "validation_error"),
            ("GET", f"{place}/history?limit=0", b"", 400, "validation_error"),
            ("GET", "/v1/skills/releases", b"", 404, "not_found"),
            ("GET", "/v1/nonsense", b"", 404, "not_found"),
        ):  # fmt: skip
            answer = await http.request(method, path, content=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (status, code) and error["message"], (path, answer.text)
            assert answer.headers["x-request-id"] == "req-1"
        assert box.id in {each["id"] for each in (await http.get("/v1/sandboxes")).json()["items"]}


async def quotas_of_the_owner_hold():
    async with sandbox(SMALL_KEY), BayClient(ENDPOINT, SMALL_KEY, max_retries=0) as client:
        await refused(errors.QuotaExceededError, client.create_sandbox(ttl=60))
        assert len((await client.list_sandboxes()).items) == 1, "a refused sandbox was left behind"
        assert len((await client.cargos.list(managed=True)).items) == 1, "a refused sandbox left its cargo behind"


async def a_client_that_leaves_ends_its_command():
    async with sandbox() as box:
        url, headers = f"{ENDPOINT}/v1/sandboxes/{box.id}/shell/exec", {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(headers=headers) as http:
            with contextlib.suppress(httpx.ReadTimeout):
                await http.post(url, json={"command": "sleep 987", "timeout": 300}, timeout=1.0)
        for _ in range(100):
            if not (await box.shell.exec("pgrep -f 'sleep [9]87'")).success:
                return
            await asyncio.sleep(0.05)
    raise AssertionError("the command still runs")


async def python_keeps_its_variables():
    async with sandbox() as box:
        done = await box.python.exec("x = 20\nprint('set')")
        assert (done.success, done.output, done.error) == (True, "set\n", None), done
        done = await box.python.exec("x * 2 + 2")
        assert done.success and done.output.strip() == "42" and done.data["output"]["text"].strip() == "42", done
        picture = "class P:\n    def _repr_png_(self):\n        return b'\\x89PNG'\nP()"
        done = await box.python.exec(picture)
        assert done.success and done.data["output"]["images"] == [{"image/png": "iVBORw=="}], done
        done = await box.python.exec("1 / 0")
        assert not done.success and "ZeroDivisionError" in done.error, done
        done = await box.python.exec("import time\ntime.sleep(60)", timeout=1)
        assert not done.success and done.error, done
        assert (await box.python.exec("print(x)")).output == "20\n", "the kernel was lost"
        assert (await box.get_execution_history(exec_type="python")).total == 6


if __name__ == "__main__":
    scenarios.run([
        sandboxes_are_ready_at_once, the_shell_runs_commands, files_are_kept_in_the_workspace,
        history_remembers_executions, clocks_move, keys_make_creation_safe_to_repeat, cargos_outlive_sandboxes,
        pages_have_cursors, strangers_find_nothing, bad_requests_name_their_fault,
        quotas_of_the_owner_hold, a_client_that_leaves_ends_its_command, python_keeps_its_variables,
    ])  # fmt: skip
