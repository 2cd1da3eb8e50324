"""TypeScript through Node: types are removed by Node itself, or by the package `typescript` in the box."""

import subprocess
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.model.results import Cause

CODE = {
    "interface Shape { side: number }\nconst square: Shape = { side: 20 }\nsquare.side as number": "20",
    "enum Side { Left, Right }\nconst same = <T,>(value: T): T => value\nsame(Side.Right) + square.side": "21",
    "const later: string = await Promise.resolve('later'); later": "later",
}

FAILURES = {
    "throw new RangeError('far' as string)": ("RangeError", "far"),
    "(null as any).missing": ("TypeError", "Cannot read properties of null (reading 'missing')"),
    "let wrong: = 3": ("SyntaxError", ""),
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package `typescript`, which Node before 22.13 needs."""
    place = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place)]
    command += ["--cache", str(place / "cache"), "typescript@5"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=place)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"npm could not install typescript: {error}")
    return place / "node_modules" / "typescript"


async def test_typescript_keeps_its_state(compiler: Path) -> None:
    """Interfaces, enums, generics and top-level await; a wrong type annotation is a syntax error (S5)."""
    async with Hutch(mount_roots=[str(compiler.parent)]) as hutch, hutch.box(memory_mb=512) as box:
        before = await box.code("ts", "const n: number = 1; n")
        assert before.text == "1" or (before.error is not None and before.error.name == "NotInstalled"), before
        await box.files.copy_in(compiler, "node_modules/typescript")
        for code, value in CODE.items():
            result = await box.code("typescript", code)
            assert result.text == value, (code, result)
        for code, (name, value) in FAILURES.items():
            failed = await box.code("typescript", code)
            assert failed.error is not None and failed.verdict.cause is Cause.EXIT, failed
            assert failed.error.name == name and value in failed.error.value, failed
        stopped = await box.code("typescript", "for (let n: number = 0; ; n++) {}", timeout=1)
        assert stopped.verdict.cause is Cause.TIMEOUT, stopped
        shown = await box.code("typescript", "({ toHtml: (): string => '<b>bold</b>' })")
        assert [display.data.get("text/html") for display in shown.displays] == ["<b>bold</b>"], shown
        assert (await box.code("typescript", "square.side")).text == "20"
        died = await box.code("typescript", "process.exit(7 as number)")
        assert died.error is not None and died.error.name == "KernelDied" and "7" in died.error.value, died
        assert (await box.code("typescript", "6 * 7 as number")).text == "42"
