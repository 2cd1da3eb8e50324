"""The protocols of what outlives boxes: volumes, receipts and questions."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from hutch.model.boxes import VolumeInfo
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt


class Volumes(Protocol):
    """Named directories that outlive boxes, each of one owner."""

    async def create(self, name: str) -> VolumeInfo:
        """Create a volume. Raises: Conflict if there is one of this name."""

    async def all(self) -> tuple[VolumeInfo, ...]: ...

    async def get(self, name: str) -> VolumeInfo:
        """Return one volume. Raises: NotFound."""

    async def remove(self, name: str) -> None:
        """Remove a volume with its files. Raises: NotFound; Conflict while a box works in it."""


class Receipts(Protocol):
    """The tamper-evident record of what was done to boxes, which outlives them.

    Operations that concern no box are in the owner's log, a chain for each day. A method that takes the id of a box
    also takes the id of such a log, as `chains` gives it.
    """

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        """Return receipts in order, beginning after number `after`. Raises: NotFound if the box has none."""

    async def chains(self) -> tuple[Chain, ...]:
        """List the chains: one for each box that has or had receipts, and the owner's logs."""

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        """Check that every receipt of one box, or of all, is what was written."""

    def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        """Export lines of JSON that `hutch receipts verify --file` can check anywhere."""

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Add a receipt of your own: `op` is `tool.NAME`, `mcp.NAME` or `note.NAME`, `error` the code it ended with.
        With an empty `box_id` it goes into the owner's log."""


class Questions(Protocol):
    """Questions of agents that a person has to decide.

    `Tools(hutch, ask=hutch.questions.ask)` asks them; a dashboard or a chat shows and answers them. An embedded Hutch
    has those of its own process.
    """

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        """List the open questions, oldest first."""

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        """Answer `allow`, `deny` or `always`; the first counts. Raises: NotFound if nobody waits for it any more."""

    async def ask(self, request: AskRequest) -> Answer:
        """Ask, and wait for the answer; a cancelled wait withdraws the question.

        Raises: Timeout if no answer comes; QuotaExceeded if too many questions are open.
        """
