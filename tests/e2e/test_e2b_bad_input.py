"""Bad input through E2B's SDK: its own error class, words that say what to do, and a sandbox that keeps running
(S13)."""

import gzip
import json
from collections.abc import Iterator

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B
from tests.server.serving import Client, serving

MB = 1 << 20


@pytest.fixture(scope="module")
def small() -> Iterator[E2B]:
    """A server that takes uploads of at most one megabyte."""
    with serving(HUTCH_SERVER_MAX_UPLOAD_MB="1") as server:
        yield E2B(server)


def test_an_oversized_upload_is_refused(small: E2B) -> None:
    """(S13) An upload over the server's limit is refused, also one that is small only while it is compressed."""
    with small.sandbox() as sandbox:
        for gzip in (False, True):
            with pytest.raises(e2b.SandboxException, match="413"):
                sandbox.files.write("large", b"0" * (3 * MB), gzip=gzip)
        sandbox.files.write("small", "fits")
        assert sandbox.files.read("small") == "fits"


def test_input_without_an_end_is_cut(small: E2B) -> None:
    """(S13) A stream of input ends at the server's limit; the process and the sandbox keep running."""
    with small.sandbox() as sandbox:
        handle = sandbox.commands.run("cat > /dev/null; echo rest", background=True, stdin=True)
        with pytest.raises(e2b.SandboxException):
            sandbox.commands.stream_input(handle.pid, ("x" * 65536 for _ in range(10_000)))
        sandbox.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "rest\n"


def test_tokens_of_other_sandboxes_open_nothing(hutch_e2b: E2B) -> None:
    """(S13) Another sandbox's token, and that of one that has ended, are refused with the SDK's own classes."""
    with hutch_e2b.sandbox() as one:
        other = e2b.Sandbox.create(**hutch_e2b.options)
        client = hutch_e2b.server.tcp().saying(
            e2b_sandbox_id=one.sandbox_id, x_access_token=str(other._envd_access_token), content_type="application/json"
        )
        answer = client.call("POST", "/filesystem.Filesystem/Stat", json.dumps({"path": "/"}).encode())
        assert (answer.status, answer.json()["code"]) == (401, 401)
        other.kill()
        with pytest.raises(e2b.SandboxException, match="not found"):
            other.files.read("any")
        assert one.is_running()


@pytest.mark.parametrize(
    "body",
    [
        {"templateID": "base", "timeout": -1}, {"templateID": "base", "timeout": "soon"}, {"templateID": 7}, {},
        {"templateID": "base", "unknown": 1}, {"templateID": "base", "metadata": {"e2b.template": "x"}},
        {"templateID": "base", "autoResume": {"enabled": True}}, {"templateID": "base", "network": {"surprise": 1}},
        {"templateID": "base", "volumeMounts": [{"name": "a", "path": "relative"}]},
        {"templateID": "base", "autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
    ],
)  # fmt: skip
def test_malformed_creations_are_refused(hutch_e2b: E2B, body: dict[str, object]) -> None:
    """(S13) Whatever has no meaning here is a 400 with a code and a text; nothing is created."""
    client = hutch_e2b.server.tcp().saying(x_api_key=hutch_e2b.key)
    before = client.call("GET", "/v2/sandboxes").json()
    answer = client.call("POST", "/v2/sandboxes", json.dumps(body).encode(), content_type="application/json")
    assert (answer.status, answer.json()["code"]) == (400, 400)
    assert answer.json()["message"] and answer.json()["error_code"]
    assert client.call("GET", "/v2/sandboxes").json() == before


def data_plane(server: E2B, sandbox: e2b.Sandbox) -> Client:
    """A client that speaks for the SDK, with the sandbox's own token."""
    return server.server.tcp().saying(
        e2b_sandbox_id=sandbox.sandbox_id,
        x_access_token=str(sandbox._envd_access_token),
        content_type="application/json",
    )


def test_fields_that_nothing_honours_are_refused(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) Every message with a field that nothing here would follow is a 400; it is not followed in part."""
    path = f"/sandboxes/{sandbox.sandbox_id}"
    control = hutch_e2b.server.tcp().saying(x_api_key=hutch_e2b.key, content_type="application/json")
    agent = data_plane(hutch_e2b, sandbox)
    interpreter = agent.saying(e2b_sandbox_port="49999")
    for client, where, body in (
        (control, f"{path}/pause", {"surprise": 1}), (control, f"{path}/timeout", {"timeout": 9, "surprise": 1}),
        (control, f"/v2{path}/connect", {"surprise": 1}), (control, f"{path}/resume", {"memory": False}),
        (control, f"{path}/fork", {"surprise": 1}), (control, f"{path}/snapshots", {"surprise": 1}),
        (control, "/volumes", {"name": "any", "surprise": 1}),
        (control, "/v2/sandboxes", {"templateID": "base", "autoResume": {"enabled": False, "surprise": 1}}),
        (agent, "/filesystem.Filesystem/Remove", {"path": "any", "surprise": 1}),
        (agent, "/process.Process/SendSignal", {"process": {"pid": 1, "tag": "x"}, "signal": "SIGNAL_SIGTERM"}),
        (interpreter, "/execute", {"code": "1", "surprise": 1}), (interpreter, "/contexts", {"surprise": 1}),
    ):  # fmt: skip
        answer = client.call("POST", where, json.dumps(body).encode())
        assert answer.status == 400, (where, answer.status, answer.body)
    for query in ("surprise=1", "order=sideways", "state=dead", f"limit={'9' * 5000}", "startedAfter=0001-01-01"):
        assert control.call("GET", f"/v2/sandboxes?{query}").status == 400, query
    assert control.call("GET", f"{path}/metrics?start={'9' * 5000}").status == 400
    assert sandbox.is_running()


def test_a_stream_of_events_ends_at_the_deadline_of_its_call(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) A call that lasts ends when the client said so, also if the client would keep reading."""
    client = data_plane(hutch_e2b, sandbox).saying(connect_timeout_ms="300", content_type="application/connect+json")
    message = json.dumps({"path": "/home/user"}).encode()
    answer = client.call("POST", "/filesystem.Filesystem/WatchDir", b"\0" + len(message).to_bytes(4, "big") + message)
    assert b'"code":"deadline_exceeded"' in answer.body


def test_a_message_without_an_end_is_cut(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) One message may be long, but not endless; what was sent of it starts nothing."""
    client = data_plane(hutch_e2b, sandbox).saying(content_type="application/connect+json")
    endless = (
        b"\0" + (1 << 30).to_bytes(4, "big") + b"x" * 100,
        b"\0" + (16 << 20).to_bytes(4, "big") + b"x" * (17 * MB),
    )
    for body in endless:
        answer = client.call("POST", "/process.Process/Start", body)
        assert answer.status in (400, 413), answer.body
    assert sandbox.commands.run("echo on").stdout == "on\n"


BOUNDARY = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\ntext'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", FILE % b"f"),
        ("multipart/form-data; boundary=" + "b" * 300, FILE % b"f"),
        (BOUNDARY, b"no part at all"),
        (BOUNDARY, b""),
        (BOUNDARY, FILE % b"f"),
        (BOUNDARY, FILE % b"" + b"\r\n--b--\r\n"),
        (BOUNDARY, FILE % b"f" + b"\r\n--b\r\n"),
        (BOUNDARY, b"--b\r\n" + b"n" * 20_000 + b": v\r\n\r\n\r\n--b--\r\n"),
        (BOUNDARY, b"--b\r\n" + b"n: v\r\n" * 20_000 + b"\r\n\r\n--b--\r\n"),
        (BOUNDARY, b"--b\r\nn: v\r\n\r\n\r\n" * 10_001 + b"--b--\r\n"),
        ("text/plain", b"text"),
    ],
    ids=("no boundary", "long boundary", "no part", "empty", "cut", "no name", "no last boundary", "long header",
         "many headers", "many parts", "another type"),
)  # fmt: skip
def test_malformed_uploads_are_refused(hutch_e2b: E2B, sandbox: e2b.Sandbox, kind: str, body: bytes) -> None:
    """(S13, Lesson 47) A body that is no upload, or bends the form of one, is a 400; the sandbox keeps running."""
    answer = data_plane(hutch_e2b, sandbox).saying(content_type=kind).call("POST", "/files", body)
    assert (answer.status, answer.json()["code"]) == (400, 400), answer.body
    assert sandbox.is_running()


def test_paths_stay_in_the_sandbox(hutch_e2b: E2B) -> None:
    """(S13, Lesson 47) A path leads to a file of the sandbox or to an error in words, however it is spelt."""
    ordinary = E2B(hutch_e2b.server, role="user")
    with ordinary.sandbox() as sandbox:
        client = data_plane(ordinary, sandbox).saying(content_type="application/octet-stream")
        sandbox.files.write("../../../../../home/user/./up//here", "in")
        assert sandbox.files.read("up/here") == "in"
        deep = "/" + "d/" * 3000 + "f"
        for path in ("%00", "a%00b", "/proc/1/mem", "/etc/passwd", deep, "n" * 300, "/dev/full", "/"):
            answer = client.call("POST", f"/files?path={path}", b"x")
            assert 400 <= answer.status < 500 or answer.status == 507, (path, answer.status, answer.body)
        sandbox.commands.run("ln -s loop loop; mkfifo pipe; touch -d @99999999999999 /tmp/late")
        for name in ("loop", "pipe"):
            with pytest.raises(e2b.SandboxException):
                sandbox.files.read(name)
        assert {each.name for each in sandbox.files.list("/tmp")} >= {"late"}
        assert sandbox.is_running()


def test_signatures_hold_for_what_they_sign(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) A signature for reading writes nothing; none holds for another user, time or sandbox."""
    sandbox.files.write("signed", "text")
    url = sandbox.download_url("signed", use_signature_expiration=600).removeprefix(hutch_e2b.url)
    client = hutch_e2b.server.tcp()
    assert client.call("GET", url).body == b"text"
    octets = client.saying(content_type="application/octet-stream")
    assert octets.call("POST", url, b"other").status == 401
    for changed in (f"{url}&username=root", f"{url}9", url.replace("signature=v1_", "signature=v2_")):
        assert client.call("GET", changed).status == 401, changed
    with hutch_e2b.sandbox() as other:
        assert client.saying(e2b_sandbox_id=other.sandbox_id).call("GET", url).status == 401
    assert sandbox.files.read("signed") == "text"


def test_compressed_uploads_are_whole(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) A compressed upload may consist of several parts; what follows that is no gzip is refused."""
    client = data_plane(hutch_e2b, sandbox).saying(content_type="application/octet-stream", content_encoding="gzip")
    assert client.call("POST", "/files?path=parts", gzip.compress(b"one ") + gzip.compress(b"two")).status == 200
    assert sandbox.files.read("parts") == "one two"
    assert client.call("POST", "/files?path=rest", gzip.compress(b"one ") + b"garbage").status == 400
    assert client.call("POST", "/files?path=rest", gzip.compress(b"one " * 9999)[:-9]).status == 400
