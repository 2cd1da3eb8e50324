"""The ten tasks, each a script that sees only schemas and answers. Everything it decides, it decides from the text."""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.agents.agent_tools import AgentTools, Host

Task = Callable[[AgentTools, Host, Path], Awaitable[None]]


def exit_code(text: str) -> int:
    """Return the exit code from the last line of an answer to exec."""
    found = re.search(r"exit code (\d+)", text.splitlines()[-1])
    assert found, text
    return int(found[1])


def output(text: str) -> str:
    """What stands before the line about the end."""
    return text.rpartition("\n[")[0]


async def shell(tools: AgentTools, command: str, **more: object) -> str:
    text = await tools.use("exec", command=command, **more)
    assert exit_code(text) == 0, text
    return output(text)


async def repository(tools: AgentTools, host: Host, scratch: Path) -> None:
    """Edit a repository and run its tests."""
    await tools.use(
        "write", path="repo/calc.py", content="def mean(values):\n    return sum(values) / len(values) + 1\n"
    )
    await tools.use(
        "write",
        path="repo/test_calc.py",
        content="import unittest\nfrom calc import mean\n\n\nclass Mean(unittest.TestCase):\n"
        "    def test_mean(self):\n        self.assertEqual(mean([1, 2, 3]), 2)\n\n    def test_empty(self):\n"
        "        self.assertEqual(mean([]), 0)\n",
    )
    has_git = exit_code(await tools.use("exec", command="command -v git")) == 0
    if has_git:
        await shell(
            tools, "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm first", cwd="repo"
        )
    run = {"command": "python3 -m unittest -q", "cwd": "repo"}
    first = await tools.use("exec", **run)
    assert exit_code(first) == 1
    found = re.search(r'File "(/workspace/repo/calc\.py)", line (\d+)', first)
    assert found, first
    shown = await tools.use("read", path=found[1], numbered=True)
    broken = re.search(rf"^ *{found[2]}\t( *)(return .*)$", shown, re.MULTILINE)
    assert broken, shown
    fixed = "return sum(values) / len(values) if values else 0"
    await tools.use("edit", path=found[1], old=broken[2], new=fixed)
    assert exit_code(await tools.use("exec", **run)) == 0
    if has_git:
        diff = await shell(tools, "git diff --stat; git diff", cwd="repo")
        assert "1 file changed" in diff
        assert f"+    {fixed}" in diff


async def long_build(tools: AgentTools, host: Host, scratch: Path) -> None:
    """A build that takes longer than a call, in a job."""
    script = (
        "for i in $(seq 1 30); do echo step $i of 30; sleep 0.05; done; echo warning: old >&2; echo built > artifact"
    )
    started = await tools.use("job", action="start", command=script, name="build")
    job = re.search(r"job (\S+) started", started)
    assert job, started
    seen: list[str] = []
    while True:
        text = await tools.use("job", action="read", job=job[1], wait=10)
        seen += re.findall(r"^step \d+ of 30$", text, re.MULTILINE)
        if "ended" in text.splitlines()[-1] and "more are there" not in text:
            break
    assert seen == [f"step {n} of 30" for n in range(1, 31)]
    ended = await tools.use("job", action="wait", job=job[1])
    assert exit_code(ended) == 0
    assert "warning: old" in ended
    assert (await tools.use("read", path="artifact")).startswith("built")
    assert "build" in await tools.use("job", action="list")


async def find_and_fix(tools: AgentTools, host: Host, scratch: Path) -> None:
    """Find every place by grep, and fix it."""
    for path in ("lib/a.py", "lib/deep/er/b.py", "tests/t.py"):
        await tools.use("write", path=path, content=f"# {path}\ndef recieve():\n    return recieve\n")
    await tools.use("write", path="lib/clean.py", content="def receive():\n    pass\n")
    assert "lib/deep/er/b.py" in await tools.use("glob", pattern="lib/**/*.py")
    found = await tools.use("grep", pattern=r"\brecieve\b", glob="**/*.py")
    hits = re.findall(r"^([^:\s]+):(\d+):", found, re.MULTILINE)
    assert len(hits) == 6
    for path in sorted({path for path, _ in hits}):
        await tools.use("read", path=path)
        changed = await tools.use("edit", path=path, old="recieve", new="receive", replace_all=True)
        assert "2 places" in changed
    assert "no line matches" in await tools.use("grep", pattern="recieve")


async def binary_files(tools: AgentTools, host: Host, scratch: Path) -> None:
    """Read bytes, change one, write them back; look at a picture."""
    make = "import struct, sys; sys.stdout.buffer.write(b'HTCH' + struct.pack('<I', 7) + bytes(range(256)) * 100)"
    await shell(tools, f'python3 -c "{make}" > data.bin; cp data.bin original.bin')
    whole, page = b"", await tools.use("read", path="data.bin")
    while True:
        assert "binary" in page.splitlines()[0]
        whole += base64.b64decode(page.splitlines()[1])
        more = re.search(r'unit="bytes", offset=(\d+)\)', page)
        if more is None:
            break
        page = await tools.use("read", path="data.bin", unit="bytes", offset=int(more[1]))
    assert whole[:4] == b"HTCH"
    changed = whole[:4] + (8).to_bytes(4, "little") + whole[8:]
    await tools.use("write", path="data.bin", content_base64=base64.b64encode(changed).decode())
    assert await shell(tools, "cmp -l original.bin data.bin | wc -l") == "1"
    assert hashlib.sha256(changed).hexdigest() in await shell(tools, "sha256sum data.bin")
    picture = (
        "import struct, zlib\n\n\ndef chunk(kind, data):\n"
        "    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\n\n"
        "head = chunk(b'IHDR', struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0))\n"
        "body = chunk(b'IDAT', zlib.compress(b'\\0\\xff\\0\\0')) + chunk(b'IEND', b'')\n"
        "open('dot.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + head + body)\n"
    )
    await tools.use("write", path="draw.py", content=picture)
    await shell(tools, "python3 draw.py")
    shown = await tools.call("read", path="dot.png")
    assert "image/png" in shown.text
    assert all(data.startswith(b"\x89PNG") for data in shown.pictures)


async def old_encodings(tools: AgentTools, host: Host, scratch: Path) -> None:
    """CRLF and Latin-1 files keep every byte that was not to be changed."""
    await shell(tools, r"printf 'name = caf\xe9\r\nprice = 5\r\n\r\nend\r\n' > menu.ini; cp menu.ini before.ini")
    shown = await tools.use("read", path="menu.ini")
    assert "name = café\nprice = 5\n\nend" in shown
    assert "latin-1" in shown
    assert "CRLF" in shown
    await tools.use("edit", path="menu.ini", old="name = café\nprice = 5", new="name = café crème\nprice = 6")
    dump = await shell(tools, "od -An -v -tx1 menu.ini | tr -d ' \\n'")
    assert bytes.fromhex(dump) == b"name = caf\xe9 cr\xe8me\r\nprice = 6\r\n\r\nend\r\n"
    refused = await tools.call("edit", path="menu.ini", old="price = 6", new="price = 6 €")
    assert refused.failed
    assert "latin-1" in refused.text
    # Writing back what was read, with the old text put back, gives the very same bytes.
    shown = await tools.use("read", path="menu.ini")
    lines = [line for line in shown.split("\n") if not line.startswith("[note")]
    text = "\n".join(lines).replace(" crème", "").replace("price = 6", "price = 5") + "\n"
    await tools.use("write", path="menu.ini", content=text)
    assert exit_code(await tools.use("exec", command="cmp before.ini menu.ini")) == 0


async def long_log(tools: AgentTools, host: Host, scratch: Path) -> None:
    """A log of 5 MB, read to its end page by page."""
    lines = 75_000
    script = (
        f"for n in range({lines}):\n    state = 'ERROR code=4711' if n == 41234 else 'ok'\n"
        "    print(f'{n:06d} ' + 'lorem ipsum ' * 5 + state)\n"
    )
    await tools.use("write", path="noise.py", content=script)
    text = await tools.use("exec", command="python3 noise.py")
    assert exit_code(text) == 0
    assert "ERROR code=" not in text  # neither at the beginning nor at the end
    size = re.search(r"of ([\d,]+) bytes left out", text)
    assert size, text[-500:]
    assert int(size[1].replace(",", "")) > 5_000_000
    notice = re.search(r'read\(path="([^"]+)", offset=(\d+)\)', text)
    assert notice
    handle, whole = notice[1], text[: text.index("[… ")]
    offset: int | None = int(notice[2])
    while offset is not None:
        page = await tools.use("read", path=handle, offset=offset)
        body, cut, rest = page.rpartition("\n[more follows: ")
        whole += (body if cut else page) + "\n"
        following = re.search(r"offset=(\d+)\)", rest) if cut else None
        offset = int(following[1]) if following else None
    assert whole.count("\n") == lines
    assert hashlib.sha256(whole.encode()).hexdigest() in await shell(tools, "python3 noise.py | sha256sum")
    error = next(line for line in whole.split("\n") if "ERROR" in line)
    assert error.startswith("041234")


async def two_boxes(tools: AgentTools, host: Host, scratch: Path) -> None:
    """A second box, and a file copied from the first one."""
    await shell(tools, "seq 1 100000 > numbers.txt; rm -rf only-here; mkdir only-here")
    current = re.search(r"^([a-z0-9]{20})\b", await tools.use("box_query", action="current"))
    assert current
    first = current[1]
    made = re.search(r"box ([a-z0-9]{20}) was created", await tools.use("box_lifecycle", action="create", name="lab"))
    assert made
    second = made[1]
    assert (await tools.call("read", path="numbers.txt")).failed
    copied = await tools.use("box_operation", action="copy_file", source_box=first, source_path="numbers.txt")
    assert "588,895 bytes" in copied
    assert await shell(tools, "tail -1 numbers.txt; ls -d only-here 2>/dev/null || echo alone") == "100000\nalone"
    await shell(tools, "python3 -c 'print(sum(map(int, open(\"numbers.txt\"))))' > sum.txt")
    await tools.use("box_lifecycle", action="switch", box=first)
    await tools.use(
        "box_operation", action="copy_file", source_box="lab", source_path="sum.txt", target_path="in/sum.txt"
    )
    assert (await tools.use("read", path="in/sum.txt")).splitlines()[0] == "5000050000"
    await tools.use("box_lifecycle", action="destroy", box=second)
    assert second not in await tools.use("box_query", action="list")


async def skill(tools: AgentTools, host: Host, scratch: Path) -> None:
    """Find a skill, do what its instructions say, and use the tool that it brings."""
    package = scratch / "roman-numerals"
    (package / "scripts").mkdir(parents=True)
    (package / "SKILL.md").write_text(
        "---\nname: roman-numerals\ndescription: Writes numbers as Roman numerals.\n"
        "hutch:\n  permissions: {network: false}\n  tools:\n  - name: to_roman\n"
        "    description: One number as a Roman numeral.\n    command: [scripts/one.py]\n"
        "    parameters: {type: object, properties: {number: {type: integer}}, required: [number]}\n---\n"
        "# Roman numerals\n\nRun `python3 /workspace/.skills/roman-numerals/scripts/roman.py NUMBER`.\n"
    )
    roman = (
        "import sys\nN = [(10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')]\n\n\ndef roman(n):\n    text = ''\n"
        "    for value, letter in N:\n        text += letter * (n // value)\n        n %= value\n    return text\n\n\n"
    )
    (package / "scripts" / "roman.py").write_text(roman + "print(roman(int(sys.argv[1])))\n")
    one = "#!/usr/bin/env python3\nimport json\n" + roman + "print(roman(json.load(sys.stdin)['number']))\n"
    (package / "scripts" / "one.py").write_text(one)
    (package / "scripts" / "one.py").chmod(0o755)
    await host.install_skill(str(package))
    listed = await tools.use("list_skills")
    assert "roman-numerals: Writes numbers as Roman numerals." in listed
    assert "roman-numerals" in await tools.prompt()
    body = await tools.use("activate_skill", name="roman-numerals")
    command = re.search(r"`(python3 [^`]+)`", body)
    assert command, body
    assert await shell(tools, command[1].replace("NUMBER", "29")) == "XXIX"
    brought = next(spec for spec in await tools.tools() if spec.name.endswith("to_roman"))
    assert brought.schema["required"] == ["number"]
    assert output(await tools.use(brought.name, number=14)) == "XIV"
    refused = await tools.call("write", path="/workspace/.skills/roman-numerals/SKILL.md", content="mine")
    assert refused.failed


async def attachment(tools: AgentTools, host: Host, scratch: Path) -> None:
    """A file comes with the message, another one goes out with the answer."""
    await host.give({"Umsätze 2024.csv": "stadt;wert\r\nKöln;3\r\nBonn;4\r\n".encode("latin-1")})
    path = (await tools.use("glob", pattern="inbox/**/*.csv")).splitlines()[0]
    shown = await tools.use("read", path=path)
    total = sum(int(number) for number in re.findall(r"^\w+;(\d+)$", shown, re.MULTILINE))
    await tools.use("write", path="report.txt", content=f"total: {total}\n")
    assert "will reach the user" in await tools.use("send_file", path="report.txt", name="../Bericht?.txt")
    assert await host.collect() == {"Bericht_.txt": b"total: 7\n"}
    assert await host.collect() == {}


async def recovery(tools: AgentTools, host: Host, scratch: Path) -> None:
    """Out of memory, then out of time; both times the answer says why, and the work is done another way."""
    await tools.use("write", path="kept.txt", content="kept\n")
    greedy = 'print(len(bytes(4 << 30).replace(bytes(1), b"x")))'
    text = await tools.use("exec", command=f"python3 -c '{greedy}'")
    assert text.splitlines()[-1].startswith("[oom"), text
    limit = re.search(r"memory limit of (\d+) MB", text)
    assert limit, text
    piece = int(limit[1]) // 4
    frugal = f"print(sum(len(bytes({piece} << 20).strip()) for _ in range(8)))"
    assert await shell(tools, f"python3 -c '{frugal}'", timeout=100) == str(8 * (piece << 20))
    slow = "sleep 1.5; echo finally"
    text = await tools.use("exec", command=slow, timeout=0.5)
    assert text.splitlines()[-1].startswith("[timeout"), text
    assert "job" in text.splitlines()[-1]
    job = re.search(r"job (\S+) started", await tools.use("job", action="start", command=slow))
    assert job
    ended = await tools.use("job", action="wait", job=job[1], wait=60)
    assert output(ended) == "finally"
    assert (await tools.use("read", path="kept.txt")).startswith("kept")


TASKS: dict[str, Task] = {
    "repository": repository,
    "long build": long_build,
    "find and fix": find_and_fix,
    "binary files": binary_files,
    "old encodings": old_encodings,
    "long log": long_log,
    "two boxes": two_boxes,
    "skill": skill,
    "attachment": attachment,
    "recovery": recovery,
}
