"""Commands and jobs over HTTP: buffered, streamed, left in the middle, read by cursor."""

import base64
import json
import struct

from tests.server.serving import Client, until


def test_exec_answers_with_result_and_verdict(client: Client) -> None:
    with client.box() as box:
        result = client.good("POST", f"{box}/exec", {"command": "cat; echo err >&2; exit 3", "stdin": "héllo\n"})
        assert (result["stdout"], result["stderr"], result["exit_code"]) == ("héllo\n", "err\n", 3)
        assert result["verdict"]["cause"] == "exit"
        raw = base64.b64encode(b"\xff\x00\xfe").decode()
        result = client.good("POST", f"{box}/exec", {"command": ["cat"], "stdin_base64": raw})
        assert result["stdout_base64"] == raw, "no byte is lost where text would lose it"
        late = client.good("POST", f"{box}/exec", {"command": "sleep 1000", "timeout": 0.2})
        assert late["verdict"]["cause"] == "timeout", "the end of a command is a verdict, not an error"


def test_exec_streams_lines(client: Client) -> None:
    """Output comes while the command runs: it waits for a file that is written after its first line was read."""
    with client.box() as box:
        command = "printf 'gr\\303\\274\\303'; until [ -e go ]; do sleep 0.02; done; printf '\\237e\\n'; exit 7"
        connection, response = client.open("POST", f"{box}/exec", {"command": command}, accept="application/x-ndjson")
        assert (response.status, response.headers["content-type"]) == (200, "application/x-ndjson")
        assert json.loads(response.readline()) == {"stream": "stdout", "text": "grü"}
        client.good("PUT", f"{box}/files/content?path=go", b"")
        rest = [json.loads(line) for line in response.read().splitlines()]
        assert rest[0] == {"stream": "stdout", "text": "ße\n"}, "a character may come in two pieces"
        assert rest[-1]["result"]["exit_code"] == 7
        connection.close()


def test_exec_streams_frames(client: Client) -> None:
    """Every byte of both streams, and the result as the last frame."""
    with client.box() as box:
        command = "head -c 3000000 /dev/zero | tr '\\0' '\\377'; echo x >&2"
        got = client.call("POST", f"{box}/exec", {"command": command}, accept="application/octet-stream")
        streams = {1: b"", 2: b"", 3: b""}
        body = got.body
        while body:
            kind, length = struct.unpack(">BI", body[:5])
            streams[kind] += body[5 : 5 + length]
            body = body[5 + length :]
        assert streams[1] == b"\xff" * 3_000_000
        assert streams[2] == b"x\n"
        assert json.loads(streams[3])["exit_code"] == 0


def test_a_stream_that_cannot_begin_is_an_ordinary_error(client: Client) -> None:
    with client.box() as box:
        got = client.call("POST", f"{box}/exec", {"command": ["/no/such"]}, accept="application/x-ndjson")
        assert (got.status, got.json()["code"]) == (422, "not_runnable")


def test_a_client_that_disconnects_kills_its_command(client: Client) -> None:
    """Buffered or streamed, before or after output, a lost client leaves no process behind."""
    with client.box() as box:
        for number, accept in enumerate(("application/json", "application/x-ndjson", "application/octet-stream")):
            for loud in ("", "echo x; "):
                name = f"pid{number}{bool(loud)}"
                command = f"{loud} echo $$ > {name}.new; mv {name}.new {name}; exec sleep 1000"
                connection = client.connect()
                connection.request("POST", f"{box}/exec", json.dumps({"command": command}), {"accept": accept})
                until(lambda name=name: client.call("GET", f"{box}/files/stat?path={name}").status == 200)
                pid = client.call("GET", f"{box}/files/content?path={name}").body.decode().strip()
                connection.close()
                alive = {"command": f"kill -0 {pid}"}
                until(lambda alive=alive: client.good("POST", f"{box}/exec", alive)["exit_code"] != 0)


def test_an_operation_nobody_knows_is_not_begun(client: Client) -> None:
    """A retry of an operation that the server does not know is refused and not started."""
    with client.box() as box:
        headers = {"hutch_operation": "never", "hutch_again": "yes"}
        answer = client.call("POST", f"{box}/exec", {"command": "touch begun"}, **headers)
        assert (answer.status, answer.json()["code"], answer.json()["retryable"]) == (409, "conflict", False)
        assert answer.json()["details"] == {"operation": "unknown"}
        assert client.call("GET", f"{box}/files/stat?path=begun").status == 404


def test_jobs_live_on_their_own(client: Client) -> None:
    """Separate connections start, feed, read, signal, await and forget a job (B28)."""
    with client.box() as box:
        started = client.good("POST", f"{box}/jobs", {"command": "while read x; do echo got $x; done", "name": "loop"})
        job = f"{box}/jobs/{started['id']}"
        assert (started["state"], started["name"]) == ("running", "loop")
        client.good("POST", f"{job}/stdin", b"one\n")
        first = client.good("GET", f"{job}/output?wait=30")
        assert (first["text"], first["eof"]) == ("got one\n", False)
        client.good("POST", f"{job}/stdin?close=true", b"two\n")
        result = client.good("POST", f"{job}/wait", {})
        assert result["exit_code"] == 0
        rest = client.call("GET", f"{job}/output?cursor={first['cursor']}", accept="application/octet-stream")
        assert (rest.body, rest.headers["hutch-eof"]) == (b"got two\n", "true")
        assert client.good("GET", f"{job}/output?cursor=4&limit=3")["text"] == "one"
        assert [each["id"] for each in client.good("GET", f"{box}/jobs")["jobs"]] == [started["id"]]
        client.good("DELETE", job)
        assert client.call("GET", job).status == 404


def test_a_large_input_is_streamed(client: Client) -> None:
    with client.box() as box:
        job = f"{box}/jobs/{client.good('POST', f'{box}/jobs', {'command': 'wc -c'})['id']}"
        client.good("POST", f"{job}/stdin?close=true", b"x" * 5_000_000)
        assert client.good("POST", f"{job}/wait", {})["stdout"].strip() == "5000000"


def test_no_secret_is_revealed(server: object, client: Client) -> None:
    """Neither an answer nor the log nor an error shows a box's secret, an input or an environment."""
    secret = "s3cr3t-0123456789abcdef"
    with client.box(secrets={"TOKEN": secret}) as box:
        shown = client.call("GET", box)
        assert secret.encode() not in shown.body
        assert shown.json()["spec"]["secrets"] == {"TOKEN": "***"}
        assert client.good("POST", f"{box}/exec", {"command": "echo $TOKEN"})["stdout"] == f"{secret}\n"
        missing = client.call("GET", f"{box}/files/stat?path={secret}")
        assert missing.status == 404
        assert secret not in missing.json()["message"]
        client.good("POST", f"{box}/exec", {"command": "true", "env": {"E": "env-value-0123"}, "stdin": "input-0123"})
        log = server.log.read_text()  # type: ignore[attr-defined]
        assert not any(text in log for text in (secret, "env-value-0123", "input-0123"))
