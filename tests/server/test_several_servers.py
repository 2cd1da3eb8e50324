"""Several servers on one PostgreSQL: each keeps boxes of its own machine, and any of them is a way to all."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from hutch import Box, Hutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.config import Config
from hutch.errors import BoxBusy, ConfigError, HeldElsewhere
from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres
from tests.server.serving import Client, Server, serving

pytestmark = pytest.mark.slow

SHORT = Rhythm(retry_sec=0.05, max_retry_sec=0.2, outage_timeout_sec=15.0)
"""So that a server that is gone is given up soon, and a box is looked for longer than a slow machine needs."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def pair(database: str) -> Iterator[tuple[Server, Server]]:
    """Two servers with one store, each with a state directory of its own, as on two machines."""
    ports = free_port(), free_port()
    started = [
        serving(
            "--port", str(port), HUTCH_STORE=database, HUTCH_SERVER_ADVERTISE=f"http://127.0.0.1:{port}"
        )
        for port in ports
    ]  # fmt: skip
    with started[0] as first, started[1] as second:
        yield first, second


def test_a_request_is_redirected_to_the_boxs_server(database: str) -> None:
    """The wrong server answers 307 with the same path at the right one, and the same key is good there."""
    with pair(database) as (first, second):
        key = first.key("user", "ann")
        box = first.tcp(key).good("POST", "/v1/boxes", {})["id"]
        answer = second.tcp(key).call("POST", f"/v1/boxes/{box}/exec", {"command": "hostname"})
        assert answer.status == 307, answer.body
        assert answer.json()["code"] == "held_elsewhere"
        target = urlsplit(answer.headers["location"])
        followed = Client((target.hostname or "", target.port or 0), authorization=f"Bearer {key}")
        assert followed.good("POST", target.path, {"command": "echo hi"})["stdout"] == "hi\n"
        # The dashboard is signed in at this server only: its page gets the error to read, and is not sent away.
        signed_in = second.tcp().call("POST", "/v1/dashboard/session", {"key": key})
        page = second.tcp(cookie=signed_in.headers["set-cookie"].split(";")[0], hutch_csrf=signed_in.json()["csrf"])
        answer = page.call("POST", f"/v1/boxes/{box}/lease", {})
        assert (answer.status, answer.json()["code"]) == (409, "held_elsewhere") and "location" not in answer.headers


async def test_a_client_of_any_server_uses_every_box(database: str) -> None:
    """`Hutch(url)` follows a box to its server: attach, exec, files, jobs, a conversation's box, destroy (B9)."""
    with pair(database) as (first, second):
        key = first.key("user", "ann")
        one, two = (server.announcement["url"] for server in (first, second))
        async with Hutch(one, key=key) as here, Hutch(two, key=key) as there:
            box = await here.create(name="shared")
            assert {each.id for each in await there.boxes()} == {box.id}
            with pytest.raises(BoxBusy):
                await there.attach(box.id)
            met: list[str] = []

            async def meet(found: Box) -> None:
                met.append(found.id)

            await there.on_created(meet)
            taken = await there.attach(box.id, takeover=True)
            assert met == [box.id], "a hook of this client runs for a box at another server"
            assert (await taken.exec("echo $((6*7))")).stdout == "42\n"
            await taken.files.write("note.txt", "from the other side")
            job = await taken.start("echo started; sleep 600")
            chunk = await job.read(wait=30)
            assert chunk.data == b"started\n"
            await there.destroy(box.id)
            assert await here.boxes() == ()
            async with here.box_for("{chat}", chat=7) as mine:
                await mine.files.write("a", "1")
            async with there.box_for("{chat}", chat=7) as same:
                assert same.id == mine.id and await same.files.read_text("a") == "1"


async def test_a_server_without_an_address_is_named(database: str) -> None:
    """A server that advertises no address cannot be redirected to: the error says whose box it is, and what to do."""
    with serving(HUTCH_STORE=database) as first, serving(HUTCH_STORE=database) as second:
        key = first.key("user", "ann")
        box = first.tcp(key).good("POST", "/v1/boxes", {})["id"]
        async with Hutch(second.announcement["url"], key=key) as there:
            with pytest.raises(HeldElsewhere) as caught:
                await there.attach(box)
        assert caught.value.remedy and caught.value.details["keeper"]


async def test_a_stream_continues_at_the_server_that_adopts_its_box(database: str) -> None:
    """The server that keeps a box is killed, and another one adopts it: a handle that was led there by a third server
    finds the box again through that one, and a followed stream continues at its cursor (B9)."""
    with pair(database) as (first, second):
        key = first.key("user", "ann")
        async with (
            Hutch(first.announcement["url"], key=key) as here,
            Hutch(second.announcement["url"], key=key, rhythm=SHORT) as there,
        ):
            box = await here.create()
            taken = await there.attach(box.id, takeover=True)
            job = await taken.start("while read line; do echo got $line; done")
            stream = job.follow()
            await job.write("one\n")
            assert await anext(stream) == ("stdout", b"got one\n")
            first.end(signal.SIGKILL)
            (first.state / "server.json").unlink()
            port = free_port()
            # It has the state directory of the killed one, as a machine whose server was started again elsewhere.
            await asyncio.to_thread(
                first.start, "--port", str(port), HUTCH_SERVER_ADVERTISE=f"http://127.0.0.1:{port}"
            )  # fmt: skip
            said = await asyncio.gather(*(taken.exec("echo still here") for _ in range(4)))
            assert {each.stdout for each in said} == {"still here\n"}
            await job.write("two\n")
            async with asyncio.timeout(60):
                assert await anext(stream) == ("stdout", b"got two\n")
            await stream.aclose()  # type: ignore[attr-defined]
            await there.destroy(box.id)


def test_an_address_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    """`server.advertise` is where keys are sent: scheme, host and port, and TLS where the server has it (P17)."""
    wrong = ("ftp://a:1", "http://", "http://u@a:1", "http://a:1/path", "http://a:1?b", "http://a:x", "http://[::1")
    for url in wrong:
        with pytest.raises(ConfigError, match=r"server\.advertise"):
            Config.load(environ={"HUTCH_SERVER_ADVERTISE": url}, cwd=tmp_path)
    secure = {"HUTCH_SERVER_TLS_CERT": "c", "HUTCH_SERVER_TLS_KEY": "k"}
    with pytest.raises(ConfigError, match="https"):
        Config.load(environ={"HUTCH_SERVER_ADVERTISE": "http://a:1", **secure}, cwd=tmp_path)
    good = Config.load(environ={"HUTCH_SERVER_ADVERTISE": "https://[::1]:7300/", **secure}, cwd=tmp_path)
    assert good.server.advertise == "https://[::1]:7300/"


async def test_wrong_addresses_cause_no_redirect_loop(database: str) -> None:
    """Where the registry's addresses lead to servers that do not keep the box, the search ends with an error."""
    brief = Rhythm(retry_sec=0.05, max_retry_sec=0.2, outage_timeout_sec=1.0)
    with pair(database) as (first, second):
        key = first.key("user", "ann")
        one, two = (server.announcement["url"] for server in (first, second))
        async with Hutch(one, key=key) as here, Hutch(two, key=key, rhythm=brief) as there:
            box = await here.create()
            taken = await there.attach(box.id, takeover=True)
            with psycopg.connect(database, autocommit=True) as db:
                db.execute("UPDATE hutch.keepers SET url = %s", (two,))
            async with asyncio.timeout(120):
                with pytest.raises(HeldElsewhere):
                    await there.attach(box.id)
                first.end(signal.SIGKILL)
                with pytest.raises(HeldElsewhere):
                    await taken.exec("true")
                (first.state / "server.json").unlink()
                await asyncio.to_thread(first.start)  # It has its box again, which ends with it.
