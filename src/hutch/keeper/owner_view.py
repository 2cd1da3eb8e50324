"""One owner's view of the keeper: volumes, receipts, questions and skills, bound to that owner and a session.

The embedded Hutch has one for this machine's user, and the server makes one for each request and each owner's MCP
servers. An admin's view may read across all owners (`all_owners`); it still writes as its own owner.
"""

from collections.abc import AsyncIterator, Mapping

from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keeper import Keeper
from hutch.keeper.questions import Questions
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.skills.skills import LocalSkills, OwnerSkills
from hutch.keeper.volumes import Volume, Volumes
from hutch.model.boxes import VolumeInfo
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt


class OwnerView:
    """The services of `hutch.api`, each limited to what one owner may see and change."""

    def __init__(
        self, keeper: Keeper, owner: str = LOCAL_OWNER, session: str = "", *, all_owners: bool = False,
        show_paths: bool = False,
    ) -> None:  # fmt: skip
        """`show_paths` adds the host paths of volumes, which only users of this machine may know."""
        self._keeper = keeper
        self.owner = owner
        self.readable = None if all_owners else owner
        """The owner whose things may be read; None means everybody's."""
        self._session = session
        self._show_paths = show_paths

    @property
    def volumes(self) -> "OwnerVolumes":
        return OwnerVolumes(self._keeper.volumes, self.owner, self.readable, show_paths=self._show_paths)

    @property
    def receipts(self) -> "OwnerReceipts":
        return OwnerReceipts(self._keeper.receipts, self.owner, self.readable, self._session)

    @property
    def skills(self) -> OwnerSkills:
        return OwnerSkills(self._keeper.skills, self._keeper.skill_mounts, self.owner)

    @property
    def local_skills(self) -> LocalSkills:
        """The skills with installation from paths of this machine, which no server may offer its callers."""
        return LocalSkills(self._keeper.skills, self._keeper.skill_mounts, self.owner)


class OwnerVolumes:
    """The `Volumes` protocol of `hutch.api` for one owner."""

    def __init__(self, volumes: Volumes, owner: str, readable: str | None, *, show_paths: bool) -> None:
        self._volumes = volumes
        self._owner = owner
        self._readable = readable
        self._show_paths = show_paths

    async def create(self, name: str) -> VolumeInfo:
        return self._shown(await self._volumes.create(name, self._owner))

    async def all(self) -> tuple[VolumeInfo, ...]:
        return tuple([self._shown(volume) for volume in await self._volumes.all(self._readable)])

    async def get(self, name: str) -> VolumeInfo:
        return self._shown(await self._volumes.get(name, self._owner))

    async def remove(self, name: str) -> None:
        await self._volumes.remove(name, self._owner)

    def _shown(self, volume: Volume) -> VolumeInfo:
        return volume.shown().but(path=volume.path) if self._show_paths else volume.shown()


class OwnerReceipts:
    """The `Receipts` protocol of `hutch.api` for one owner and session."""

    def __init__(self, receipts: Receipts, owner: str, readable: str | None, session: str) -> None:
        self._receipts = receipts
        self._owner = owner
        self._readable = readable
        self._session = session

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        return await self._receipts.list(box_id, after, limit, owner=self._readable)

    async def chains(self) -> tuple[Chain, ...]:
        return await self._receipts.chains(owner=self._readable)

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        return await self._receipts.verify(box_id, owner=self._readable)

    def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        return self._receipts.export(box_id, owner=self._readable)

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Without a box the note goes to the owner's own log, also for an admin who reads everybody's."""
        await self._receipts.note(
            box_id, op, dict(details or {}), owner=self._readable if box_id else self._owner, session=self._session,
            error=error, duration_ms=duration_ms,
        )  # fmt: skip


class OwnerQuestions:
    """The `Questions` protocol of `hutch.api`; agents of an embedded Hutch have one owner without a name."""

    def __init__(self, questions: Questions, owner: str = "") -> None:
        self._questions = questions
        self._owner = owner

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        return tuple(question.shown() for question in self._questions.waiting(owner=self._owner))

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        self._questions.answer(question_id, answer, owner=self._owner)

    async def ask(self, request: AskRequest) -> Answer:
        return await self._questions.ask(request)
