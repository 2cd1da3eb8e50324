"""Hutch as a sandbox of inspect_ai, and the self-check that inspect_ai ships for sandboxes, run against it."""

import os

import pytest
from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentLimits
from inspect_ai.util._sandbox.environment import SandboxUserUnsupportedError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from hutch import Hutch
from hutch.errors import NotRunnable, Unsupported
from hutch.model.results import Cause

pytestmark = pytest.mark.anyio


class HutchSandbox(SandboxEnvironment):
    def __init__(self, box):
        super().__init__()
        self._box = box

    async def exec(self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, **hints):
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self._box.exec(
                cmd, stdin=input, cwd=cwd, env=env, user=user, timeout=timeout, keep_output=2 * most
            )
        except NotRunnable as error:
            if error.details.get("errno") == "EACCES":
                raise PermissionError(error.message) from error
            return ExecResult(False, 127, "", error.message)
        except Unsupported as error:
            raise SandboxUserUnsupportedError(error.message) from error
        if result.verdict.cause is Cause.TIMEOUT:
            raise TimeoutError(result.verdict.message)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file, contents):
        await self._box.files.write(file, contents)

    async def read_file(self, file, text=True):
        data = await self._box.files.read(file, limit=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE + 1)
        if len(data) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted): ...


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def sandbox_env():
    async with Hutch() as hutch, hutch.box(read_only_root=os.geteuid() != 0, limits={"memory_mb": 1024}) as box:
        yield HutchSandbox(box)
