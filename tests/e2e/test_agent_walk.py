"""A walk through forty ordinary things that agents do in a shell, in the profiles that they are given.

What a box refuses must say why and what to do, because a model has nothing else to go by.
"""

from typing import NamedTuple

import pytest

from hutch import Hutch
from hutch.errors import Unsupported
from hutch.model.results import Result

TIMEOUT = 120.0
WHEEL = """
cat > wheel.py <<'END'
import zipfile
with zipfile.ZipFile("greet-1-py3-none-any.whl", "w") as file:
    file.writestr("greet.py", "def main(): print('installed')\\n")
    file.writestr("greet-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: greet\\nVersion: 1\\n")
    file.writestr("greet-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    file.writestr("greet-1.dist-info/entry_points.txt", "[console_scripts]\\ngreet = greet:main\\n")
    file.writestr("greet-1.dist-info/RECORD", "")
END
python wheel.py
"""
NODE_PACKAGE = """
mkdir -p answer && cd answer
echo '{"name": "answer", "version": "1.0.0", "bin": "./tell.js", "main": "./tell.js"}' > package.json
printf '#!/usr/bin/env node\\nconsole.log(42)\\n' > tell.js && chmod +x tell.js && cd ..
"""
DEB = """
mkdir -p /tmp/pack/DEBIAN /tmp/pack/usr/bin
printf 'Package: greeter\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@example.org>\\nDescription: x\\n' \
  > /tmp/pack/DEBIAN/control
printf '#!/bin/sh\\necho greetings\\n' > /tmp/pack/usr/bin/greeter && chmod 755 /tmp/pack/usr/bin/greeter
dpkg-deb -b /tmp/pack /tmp/greeter.deb >/dev/null && apt-get install -y /tmp/greeter.deb && greeter
"""


class Step(NamedTuple):
    what: str
    command: str
    expected: str
    """Part of its output."""
    user: str | None = None
    needs: str = ""
    """`writable`: a writable system; `network`: a network."""
    remedy: str = ""
    """Part of the remedy where what it needs is missing."""


STEPS = (
    Step("a shell", "echo $((6 * 7))", "42"),
    Step("who am I", "id -un; echo $HOME", "user\n/home/user"),
    Step("the name of the machine", 'test "$(hostname)" = "$(cat /etc/hostname)" && echo same', "same"),
    Step("python", "python -c 'print(\"py\" + str(6 * 7))'", "py42"),
    Step("python in a login shell", "bash -lc 'python --version'", "Python 3"),
    Step("processors", "test $(nproc) = $(grep -c ^processor /proc/cpuinfo) && echo agree", "agree"),
    Step("memory", "free -m | awk '/^Mem/ {print ($2 <= 1024) ? \"limited\" : $2}'", "limited"),
    Step("processes", "ps aux | grep -c '[h]utch-guest'", "1"),
    Step("top", "top -bn1 | head -1", "load average"),
    Step("free disk", "df -h /workspace | tail -1", "G"),
    Step("a file", "echo text > notes.txt && cat notes.txt", "text"),
    Step("a directory tree", "mkdir -p a/b/c && touch a/b/c/d && find a -type f", "a/b/c/d"),
    Step("renaming a directory", "mv a z && ls z/b/c", "d"),
    Step("unicode names", "echo ü > 'naïve 名前.txt' && cat 'naïve 名前.txt'", "ü"),
    Step("unicode in programs", "printf 'grüße' | python -c 'import sys; print(sys.stdin.read().upper())'", "GRÜSSE"),
    Step("locale", "locale 2>/dev/null | grep LC_CTYPE", "UTF-8"),
    Step("time zones", "TZ=Asia/Tokyo date +%Z", "JST"),
    Step("a large file", "dd if=/dev/zero of=big bs=1M count=100 2>/dev/null && stat -c %s big && rm big", "104857600"),
    Step("an archive", "tar czf z.tgz z && tar tzf z.tgz | tail -1", "z/b/c/d"),
    Step("text tools", "seq 1000 | grep 7 | sed s/7/x/ | awk 'END {print NR}' | sort | uniq", "271"),
    Step("long output", "seq 200000 | tail -1", "200000"),
    Step("a script", "printf '#!/bin/sh\\necho $1\\n' > s.sh && chmod +x s.sh && ./s.sh ran", "ran"),
    Step("a venv", "python -m venv v --without-pip && v/bin/python -c 'import sys; print(sys.prefix)'", "/workspace/v"),
    Step("pip", WHEEL + "pip install --no-index ./greet-1-py3-none-any.whl && greet", "installed"),
    Step("pip in a venv", "python -m venv w && w/bin/pip install --no-index ./greet-1-py3-none-any.whl && w/bin/greet",
         "installed"),
    Step("node", "node -e 'console.log(require(\"os\").cpus().length > 0)'", "true"),
    Step("npm", NODE_PACKAGE + "npm init -y >/dev/null && npm install ./answer && node -e 'require(\"answer\")'", "42"),
    Step("npm install -g", "npm install -g ./answer >/dev/null && answer", "42"),
    Step("git", "git init -q r && cd r && git config user.email a@b.c && git config user.name a && echo x > f && "
         "git add f && git commit -qm first && git log --format=%s && git status -s", "first"),
    Step("a C program", "printf '#include <stdio.h>\\nint main() { puts(\"built\"); }\\n' > m.c && gcc m.c -o m && ./m",
         "built"),
    Step("make" , "printf 'all:\\n\\t@echo made\\n' > Makefile && (command -v make >/dev/null && make || echo made)",
         "made"),
    Step("sqlite", "python -c 'import sqlite3; print(sqlite3.connect(\"x.db\").execute(\"select 6*7\").fetchone()[0])'",
         "42"),
    Step("a server in the background", "(python -m http.server 8765 --bind 127.0.0.1 >/dev/null 2>&1 &) ; "
         "for _ in $(seq 100); do curl -sf http://127.0.0.1:8765/notes.txt && break; sleep 0.1; done", "text"),
    Step("a loop like cron", "(for n in 1 2 3; do echo $n >> ticks; sleep 0.1; done &) ; "
         "for _ in $(seq 100); do test $(wc -l < ticks 2>/dev/null || echo 0) = 3 && break; sleep 0.1; done; cat ticks",
         "3"),
    Step("several processors at once", "python -c 'from multiprocessing import Pool; "
         "print(sum(Pool(2).map(abs, range(-3, 3))))'", "9"),
    Step("a temporary directory", "cd $(mktemp -d) && pwd", "/tmp/"),
    Step("shared memory", "echo shm > /dev/shm/x && cat /dev/shm/x", "shm"),
    Step("a file of the system", "echo x > /etc/agent.conf && cat /etc/agent.conf", "x", user="root",
         needs="writable", remedy="read-only"),
    Step("apt", DEB, "greetings", user="root", needs="writable", remedy="read-only"),
    Step("apt without root", "dpkg -r base-files", "", needs="never", remedy="root"),
    Step("an address of the internet", "curl -sS -m 10 -o /dev/null http://deb.debian.org/ && echo reached", "",
         needs="network", remedy="no network"),
)  # fmt: skip


async def walk(hutch: Hutch, profile: str, *, has_users: bool) -> list[str]:
    """Take every step in one box, and return what went otherwise than it should."""
    try:
        box = await hutch.create(profile=profile)
    except Unsupported as refused:
        if "network" not in refused.message:
            raise
        assert refused.remedy or refused.message
        box = await hutch.create(profile=profile, network="off")
    wrong = []
    if not has_users and profile != "default":
        assert any(change.field == "read_only_root" for change in box.spec.adjustments), (
            "what an ordinary user cannot have is not said"
        )
    try:
        for step in STEPS:
            if step.user and not has_users:
                with pytest.raises(Unsupported) as no_root:
                    await box.exec(step.command, user=step.user)
                assert "run Hutch as root" in no_root.value.remedy, step.what
                continue
            result = await box.exec(step.command, user=step.user, timeout=min(TIMEOUT, box.spec.limits.max_timeout_sec))
            wrong += [f"{step.what}: {why}" for why in _judge(step, result, box.spec.read_only_root, box.spec.network)]
    finally:
        await box.destroy()
    return wrong


def _judge(step: Step, result: Result, read_only: bool, network: str) -> list[str]:
    answer = f"{result.exit_code} {result.verdict} {result.stdout[-500:]} {result.stderr[-500:]}"
    refused = step.needs == "never" or (step.needs == "writable" and read_only)
    refused = refused or (step.needs == "network" and network == "off")
    if refused:
        why = step.remedy if not (step.needs == "never" and read_only) else "read-only"
        return (
            [] if not result.ok and why in result.verdict.remedy else [f"the refusal does not explain itself: {answer}"]
        )
    if step.needs == "network":  # whether that address answers is not ours to promise
        return [f"it says that there is no network: {answer}"] if "no network" in result.verdict.remedy else []
    return [] if result.ok and step.expected in result.stdout else [answer]


def test_the_walk_is_long_enough() -> None:
    assert len(STEPS) >= 40


@pytest.mark.parametrize("profile", ["default", "code", "app"])
async def test_an_agent_walks_through_an_ordinary_day(profile: str, rootless: bool) -> None:
    """Forty things that agents do in a shell work, or are refused with the reason and the way out (B1, S5)."""
    async with Hutch() as hutch:
        assert await walk(hutch, profile, has_users=not rootless) == []
