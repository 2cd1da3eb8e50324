"""The protocol of a box's kernels: interpreters that keep their state from one run to the next."""

from collections.abc import AsyncIterator
from typing import Protocol

from hutch.model.code import CodePiece, CodeResult, KernelInfo


class Kernels(Protocol):
    """The code interpreters of one box.

    Each language has a default kernel, whose id is the language's name and which is started at its first run. Others
    are started with `start`. One kernel runs one piece of code at a time, and others wait; two kernels run side by
    side. Code that fails, never ends or kills its interpreter is a result with a verdict, not an error.
    """

    async def start(
        self, language: str = "python", *, cwd: str | None = None, env: dict[str, str] | None = None
    ) -> KernelInfo:
        """Start another kernel. Raises: NotRunnable if the box lacks its program; QuotaExceeded if it has too many."""

    async def all(self) -> tuple[KernelInfo, ...]:
        """List the kernels, oldest first."""

    async def run(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> CodeResult:  # fmt: skip
        """Run code to its end. With `kernel` it runs there, and the language may be "". A timeout interrupts it.

        `env` holds for this run only. Raises: NotFound if there is no such kernel; NotRunnable if the box lacks the
        language's program; Invalid for a language that nobody knows or code that is no text.
        """

    def stream(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> AsyncIterator[CodePiece]:  # fmt: skip
        """Run code and yield what it prints and shows as it comes; the last piece has the result.

        Leaving the iteration early interrupts the code. Raises: as `run`.
        """

    async def interrupt(self, kernel: str) -> None:
        """Interrupt what runs in a kernel; its state stays. Raises: NotFound."""

    async def restart(self, kernel: str) -> KernelInfo:
        """Start a kernel again under its name, with empty state. Raises: NotFound."""

    async def remove(self, kernel: str) -> None:
        """End a kernel. Raises: NotFound."""
