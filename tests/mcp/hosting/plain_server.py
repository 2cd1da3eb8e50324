"""An MCP server of the standard library alone, run in boxes by the tests: small, and able to misbehave on request."""

import json
import os
import sys
import threading
import time

TOOLS = (
    "echo",
    "environment",
    "where",
    "progress",
    "sleep",
    "die",
    "eat",
    "large",
    "junk",
    "ask",
    "endless",
    "cancels",
    "file",
    "spill",
)
cancelled = []
answers = {}
answered = threading.Condition()
writing = threading.Lock()


def send(message):
    with writing:
        text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False)
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


def ask(method, params):
    number = f"ask-{len(answers)}-{time.monotonic_ns()}"
    send({"id": number, "method": method, "params": params})
    with answered:
        answered.wait_for(lambda: number in answers, 20)
        return answers.get(number)


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(request):
    params = request["params"]
    name, given = params["name"], params.get("arguments") or {}
    token = (params.get("_meta") or {}).get("progressToken")
    if name == "echo":
        return text(given["text"])
    if name == "environment":
        return text(os.environ.get(given["name"], "(not set)"))
    if name == "where":
        return text(json.dumps({"cwd": os.getcwd(), "argv": sys.argv, "file": __file__, "pid": os.getpid()}))
    if name == "file":
        with open(given["path"]) as file:
            facts = os.fstat(file.fileno())
            mode, mine = oct(facts.st_mode & 0o7777), facts.st_uid == os.getuid()
            return text(json.dumps({"mode": mode, "mine": mine, "text": file.read()}))
    if name == "spill":
        with open(given["path"]) as file:
            print("the key is", file.read(), file=sys.stderr, flush=True)
        os._exit(9)
    if name == "progress":
        for step in range(3):
            answer = {"progressToken": token, "progress": step + 1, "total": 3, "message": given["who"]}
            send({"method": "notifications/progress", "params": answer})
            time.sleep(0.05)
        return text(given["who"])
    if name == "sleep":
        time.sleep(given["seconds"])
        return text("slept")
    if name == "die":
        os._exit(given.get("code", 3))
    if name == "eat":
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * (16 << 20)))
    if name == "large":
        return text("é" * given["characters"])
    if name == "junk":
        sys.stdout.buffer.write(b'Willkommen! ist kein JSON\n{"half": \n')
        sys.stdout.buffer.flush()
        return text("after the junk")
    if name == "endless":
        sys.stdout.buffer.write(b"x" * (given["megabytes"] << 20))
        sys.stdout.buffer.flush()
        return text("never told")
    if name == "ask":
        schema = {"type": "object", "properties": {"word": {"type": "string"}}}
        return text(json.dumps(ask("elicitation/create", {"message": "Which word?", "requestedSchema": schema})))
    if name == "cancels":
        return text(json.dumps(cancelled))
    raise ValueError(name)


def handle(request):
    method = request["method"]
    if method == "initialize":
        time.sleep(float(os.environ.get("SLOW_START", "0")))
        result = {
            "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "plain", "version": "1"}, "instructions": "Plain words.",
        }  # fmt: skip
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call":
        try:
            result = call(request)
        except (KeyError, TypeError, ValueError, OSError) as error:
            result = {**text(f"{type(error).__name__}: {error}"), "isError": True}
    elif method == "ping":
        result = {}
    else:
        send({"id": request["id"], "error": {"code": -32601, "message": f"no {method}"}})
        return
    send({"id": request["id"], "result": result})


def main():
    print("plain server says hello", file=sys.stderr, flush=True)
    if os.environ.get("EXIT_AT_START"):
        print("I cannot work like this", file=sys.stderr, flush=True)
        sys.exit(7)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            with answered:
                answers[message["id"]] = message.get("result", message.get("error"))
                answered.notify_all()
        elif "id" not in message:
            if message["method"] == "notifications/cancelled":
                cancelled.append(message["params"])
        else:
            threading.Thread(target=handle, args=(message,), daemon=True).start()


main()
