"""Bad input through E2B's SDK: its own error class, words that say what to do, and a sandbox that goes on (S13)."""

import json
from collections.abc import Iterator

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B
from tests.server.serving import serving

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
    """(S13) A stream of input ends at the server's limit; the process and the sandbox go on."""
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
