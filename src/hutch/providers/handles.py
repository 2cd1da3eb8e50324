"""What an instance hands out, as part of the contract: a job's process, a connection to a port, and an entrance."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping

from hutch.model.results import Chunk, JobInfo, Result


class Process(ABC):
    """A job's live handle. Reading loses no byte within the bounds and never blocks the process."""

    id: str
    pid: int = 0
    """Its pid in the box, where the handle knows it without asking; else 0."""

    @abstractmethod
    async def info(self) -> JobInfo:
        """Return the job's state, and after its end also verdict and usage."""

    @abstractmethod
    async def read(self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0) -> Chunk:
        """Return bytes from `cursor` on, after at most `wait` seconds for the first. `eof` is set only at the end."""

    @abstractmethod
    def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        """Yield ("stdout" | "stderr", bytes) from these cursors until the process has ended and all was read."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its input.

        Raises:
            Conflict: Its input is closed, or it has ended.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close its input. Closing twice is fine."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the whole process group. After the end this does nothing."""

    @abstractmethod
    async def resize(self, rows: int, cols: int) -> None:
        """Resize its terminal.

        Raises:
            Unsupported: It has no terminal.
        """

    @abstractmethod
    async def wait(self, timeout_sec: float | None = None) -> Result:
        """Return its result, with head and tail of the output.

        Raises:
            Timeout: It still runs after `timeout_sec`. The job keeps running.
        """


class PortStream(ABC):
    """A TCP connection to a port inside a box. Reading and writing wait for the other end, so memory is bounded."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next bytes; none when the program in the box has ended its side.

        Raises:
            PortClosed: The program reset the connection.
            Unavailable, BoxBroken: The box cannot be reached, or is dead.
        """

    @abstractmethod
    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, and wait until the box accepts more.

        Raises:
            PortClosed: The program reads no more.
            Unavailable, BoxBroken: As for `receive`.
        """

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not received, not even the end. Without an answer it is not used again."""
        return False

    @abstractmethod
    def end(self) -> None:
        """End our side; the program in the box may still send. A second call is fine."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. A second call is fine."""


class Entrance(ABC):
    """What a process needs to enter a box of this machine: descriptors, which `close` closes."""

    pid: int
    """A process of the box, whose resource limits hold for a process that enters."""
    pidfd: int
    """The descriptor by which the namespaces are joined, setns(2)."""
    groups: tuple[int, ...]
    """Open `tasks` files of v1 control groups; with `unified` the directory of the v2 group comes last."""
    unified: bool
    has_id_ranges: bool
    """Whether the box has ids of its own, and its user is to be become."""
    options: Mapping[str, object]
    """The options of a guest that runs as the box's user, with the box's environment and secrets."""
    directory: str
    """The box's directory on the host, where the guest's socket is bound."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def entered(self, pid: int) -> None:
        """Note that this process of the host is in the box now, so that limits which we enforce ourselves cover it."""
