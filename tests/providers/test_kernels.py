"""Kernels on an engine without a warm start: the same programs, sent through their own input."""

from pathlib import Path

import pytest

from hutch.errors import NotRunnable
from hutch.kernels.table import KernelTable
from hutch.model.code import CodeResult
from hutch.model.results import Cause
from hutch.providers.base import Instance
from tests.providers import daemons
from tests.providers.making import box


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
