"""The program in the box: it shows what reached it, and misbehaves on request. Standard library only."""

import asyncio
import base64
import hashlib
import json
import sys
import urllib.parse

PAGE = b"<!doctype html><title>box</title><p id=hello>hello from the box</p>"
seen = []


async def read_head(reader):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = await reader.readline()
        if not byte:
            return b""
        head += byte
    return head


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


def answer(status, body, **headers):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def websocket(reader, writer, headers):
    key = headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
    protocol = headers.get("sec-websocket-protocol", "").split(",")[0].strip()
    more = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    writer.write(
        f"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{more}"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )
    while True:
        first, second = await reader.readexactly(2)
        size = second & 127
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8), "big")
        mask = await reader.readexactly(4)
        data = bytearray(await reader.readexactly(size))
        for at in range(size):
            data[at] ^= mask[at % 4]
        length = (
            bytes([size])
            if size < 126
            else b"\x7e" + size.to_bytes(2, "big")
            if size < 65536
            else (b"\x7f" + size.to_bytes(8, "big"))
        )
        if first & 15 in (1, 2, 8):
            writer.write(bytes([128 | first & 15]) + length + data)
            await writer.drain()
        if first & 15 == 8:
            return


async def serve(reader, writer):
    try:
        while head := await read_head(reader):
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = first.split(" ", 2)
            seen.append([method, target])
            pairs = [line.split(": ", 1) for line in lines if ": " in line]
            headers = {name.lower(): value for name, value in pairs}
            path, _, query = target.partition("?")
            given = dict(urllib.parse.parse_qsl(query))
            if "upgrade" in headers and path != "/no-websocket":
                await websocket(reader, writer, headers)
                return
            if not await respond(method, path, given, target, pairs, headers, reader, writer):
                return
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def respond(method, path, given, target, pairs, headers, reader, writer):
    if path == "/early":
        writer.write(answer(413, b"too large"))
        await writer.drain()
        return False
    body = await read_body(reader, headers) if path != "/count" else b""
    if path == "/count":
        total = 0
        left = int(headers.get("content-length", 0))
        while left:
            data = await reader.read(min(left, 1 << 18))
            left -= len(data)
            total += len(data)
        writer.write(answer(200, str(total).encode()))
    elif path == "/echo":
        shown = {"method": method, "target": target, "headers": pairs, "body": body.decode("latin-1")}
        writer.write(answer(200, json.dumps(shown).encode(), Content_Type="application/json"))
    elif path == "/seen":
        writer.write(answer(200, json.dumps(seen[:-1]).encode()))
        seen.clear()
    elif path == "/bytes":
        size = int(given["n"])
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        piece = bytes(1 << 18)
        while size:
            writer.write(piece[: min(size, len(piece))])
            size -= min(size, len(piece))
            await writer.drain()
    elif path == "/chunks":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(int(given["n"])):
            text = f"piece {number}\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))
        writer.write(b"0\r\n\r\n")
    elif path == "/sse":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(10000):
            writer.write(f"data: {number}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0.05)
    elif path == "/wait":
        await asyncio.sleep(float(given.get("s", 0.2)))
        writer.write(answer(200, b"waited"))
    elif path == "/raw":
        writer.write(base64.urlsafe_b64decode(given["answer"]))
        await writer.drain()
        return False
    elif path == "/endless":
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Endless: " + b"a" * 1000 + b"\r\n")
            await writer.drain()
    elif path == "/nothing":
        return False
    elif path == "/cut":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        return False
    elif path == "/redirect":
        writer.write(answer(302, b"", Location=given["to"]))
    elif path == "/cookie":
        writer.write(answer(200, b"set", Set_Cookie=given["set"]))
    elif path == "/no-websocket":
        writer.write(answer(403, b"no websocket here"))
    else:
        writer.write(answer(200, PAGE, Content_Type="text/html"))
    await writer.drain()
    return headers.get("connection", "").lower() != "close"


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=512)
    async with server:
        await server.serve_forever()


asyncio.run(main())
