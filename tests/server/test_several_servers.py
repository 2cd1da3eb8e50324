"""Several servers on one PostgreSQL: each keeps boxes of its own machine, and any of them is a way to all."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from hutch import Hutch
from hutch.errors import BoxBusy, HeldElsewhere
from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres
from tests.server.serving import Client, Server, serving

pytestmark = pytest.mark.slow


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
            taken = await there.attach(box.id, takeover=True)
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
