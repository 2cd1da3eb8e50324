"""Kernels on an engine without a warm start: the same programs, sent through their own input."""

import asyncio
from pathlib import Path

import pytest

from hutch.errors import NotRunnable
from hutch.kernels.table import KernelTable
from hutch.model.code import CodeResult
from hutch.model.results import Cause
from hutch.providers.base import Instance
from tests.kernels import test_javascript, test_typescript
from tests.kernels.test_typescript import compiler
from tests.providers import daemons, rootfs
from tests.providers.container_boxes import box

__all__ = ["compiler"]


async def _run(kernels: KernelTable, made: Instance, language: str, code: str, timeout: float = 60.0) -> CodeResult:
    pieces = kernels.stream(made, language, code, kernel_id="", timeout_sec=timeout, env={}, keep_output=1 << 20)
    results = [piece.result async for piece in pieces if piece.result is not None]
    return results[0]


async def test_a_kernel_in_a_container(docker: daemons.Daemon, tmp_path: Path) -> None:
    """State, an interrupt, a death and a language that the image lacks, in a container (S5)."""
    async with box(daemons.provider(docker, tmp_path), memory_mb=128) as made:
        kernels = KernelTable()
        assert (await _run(kernels, made, "bash", "declare kept=20; cd /tmp")).ok
        assert (await _run(kernels, made, "bash", "echo $((kept + 1)) $PWD")).stdout == "21 /tmp\n"
        stopped = await _run(kernels, made, "bash", "while :; do :; done", timeout=1)
        assert stopped.verdict.cause is Cause.TIMEOUT
        assert (await _run(kernels, made, "bash", "echo $kept")).stdout == "20\n"
        died = await _run(kernels, made, "bash", "exit 7")
        assert died.error is not None and died.error.name == "KernelDied"
        for language in ("python", "javascript"):
            with pytest.raises(NotRunnable, match=f"cannot run {language}") as refused:
                await _run(kernels, made, language, "1")
            assert "image" in refused.value.remedy
        assert (await _run(kernels, made, "bash", "echo alive")).stdout == "alive\n"


PYTHON_DISPLAYS = {
    "text/plain": ("6 * 7", "42"),
    "text/html": ("class H:\n  def _repr_html_(self): return '<b>x</b>'\nH()", "<b>x</b>"),
    "text/markdown": ("class M:\n  def _repr_markdown_(self): return '# x'\nM()", "# x"),
    "text/latex": ("class L:\n  def _repr_latex_(self): return '$x$'\nL()", "$x$"),
    "image/svg+xml": ("class S:\n  def _repr_svg_(self): return '<svg/>'\nS()", "<svg/>"),
    "image/png": ("class P:\n  def _repr_png_(self): return b'png'\nP()", "cG5n"),
    "image/jpeg": ("class J:\n  def _repr_jpeg_(self): return b'jpg'\nJ()", "anBn"),
    "application/pdf": ("class D:\n  def _repr_pdf_(self): return b'pdf'\nD()", "cGRm"),
    "application/json": ("class O:\n  def _repr_json_(self): return {'a': 1}\nO()", '{"a": 1}'),
}


async def test_python_and_javascript_in_a_container(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Displays, magics, errors, an interrupt and a death, by programs that the image does not have (S5)."""
    await asyncio.to_thread(daemons.load, docker, rootfs.INTERPRETERS, await asyncio.to_thread(rootfs.interpreters))
    provider = daemons.provider(docker, tmp_path)
    async with box(provider, memory_mb=512, image=f"oci:{rootfs.INTERPRETERS}") as made:
        kernels = KernelTable()

        async def run(language: str, code: str, timeout: float = 60.0) -> CodeResult:
            return await _run(kernels, made, language, code, timeout)

        for mime, (code, wanted) in PYTHON_DISPLAYS.items():
            shown = await run("python", code)
            assert [display.data.get(mime) for display in shown.displays] == [wanted], (mime, shown)
        assert (await run("python", "kept = !echo one; echo two\nkept")).text == "['one', 'two']"
        assert (await run("python", "%cd /tmp\n!pwd")).stdout == "/tmp\n"
        assert (await run("python", "import asyncio\nawait asyncio.sleep(0, 'slept')")).text == "'slept'"
        failed = await run("python", "def inner():\n    return 1 / 0\ninner()")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError"
        assert "return 1 / 0" in failed.error.traceback and "_hutch" not in failed.error.traceback
        wrong = await run("python", "def broken(:")
        assert wrong.error is not None and wrong.error.name == "SyntaxError"
        nul = await run("python", "'a\0b'")
        assert nul.error is not None and nul.verdict.cause is Cause.EXIT
        assert (await run("python", "while True: pass", 1)).verdict.cause is Cause.TIMEOUT
        assert (await run("python", "len(kept)")).text == "2"
        died = await run("python", "import os; os._exit(3)")
        assert died.error is not None and died.error.name == "KernelDied"
        again = await run("python", "'kept' in globals()")
        assert again.text == "False" and any("state is gone" in note for note in again.notes)

        for mime, (code, wanted) in test_javascript.DISPLAYS.items():
            shown = await run("javascript", code)
            assert [display.data.get(mime) for display in shown.displays] == [wanted], (mime, shown)
        for code, (name, _) in test_javascript.ERRORS.items():
            failed = await run("javascript", code)
            assert failed.error is not None and failed.error.name == name and failed.verdict.cause is Cause.EXIT, failed
        assert (await run("javascript", "const kept = [1, 2]; kept.map(n => n * 2)")).text.replace(" ", "") == "[2,4]"
        assert (await run("javascript", "console.log(kept.length); await Promise.resolve(5)")).stdout == "2\n"
        thrown = await run("javascript", "throw new TypeError('no')")
        assert thrown.error is not None and thrown.error.name == "TypeError"
        assert (await run("javascript", "for (;;) {}", 1)).verdict.cause is Cause.TIMEOUT
        assert (await run("javascript", "kept.length")).text == "2"


async def test_typescript_in_a_container(docker: daemons.Daemon, tmp_path: Path, compiler: Path) -> None:
    """Types, enums and top-level await, by the package in the box; a wrong annotation is a syntax error (S5)."""
    await asyncio.to_thread(daemons.load, docker, rootfs.INTERPRETERS, await asyncio.to_thread(rootfs.interpreters))
    provider = daemons.provider(docker, tmp_path)
    async with box(provider, memory_mb=512, image=f"oci:{rootfs.INTERPRETERS}") as made:
        for name in ("package.json", "lib/typescript.js"):
            await made.files.write(f"node_modules/typescript/{name}", (compiler / name).read_bytes())
        kernels = KernelTable()
        for code, value in test_typescript.CODE.items():
            result = await _run(kernels, made, "typescript", code)
            assert result.text == value, (code, result)
        for code, (name, _) in test_typescript.FAILURES.items():
            failed = await _run(kernels, made, "typescript", code)
            assert failed.error is not None and failed.error.name == name and failed.verdict.cause is Cause.EXIT, failed
