"""The part of the provider contract about states of a box's files: freezing, going back, comparing, merging.

A provider names a state by a text of its own. The keeper stores it, and passes all that are still wanted as `keep`
whenever a provider may drop others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hutch.errors import Unsupported
from hutch.model.layers import Change, Way
from hutch.model.record import Record

if TYPE_CHECKING:
    from hutch.providers.base import Instance


class Frozen(Record, frozen=True, kw_only=True):
    """A state that was frozen."""

    state: str
    way: Way


class Layers(ABC):
    """The states of one live box's files. Calls for one box come one after the other."""

    @abstractmethod
    async def freeze(
        self, keep: tuple[str, ...], *, kill: bool = False, to_fork: bool = False, squash: bool = False
    ) -> Frozen:  # fmt: skip
        """Freeze the present state; the box goes on from it. `kill` ends its processes first.

        With `to_fork`, a fork of the state follows at once, which an engine may prepare. With `squash`, the state
        shares with earlier ones only what the box still sees, so that space is freed when those are dropped.

        Raises:
            EngineError: It failed, and the box is as it was; the details name the step.
        """

    @abstractmethod
    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        """Give the box the files of a state. `kill` ends its processes first.

        Raises:
            Conflict: Processes or operations run in the box.
            NotFound: The state is gone.
            EngineError: It failed, and the box is as it was.
        """

    @abstractmethod
    async def compare(self, start: str, end: str, *, text: bool) -> tuple[tuple[Change, ...], bool]:
        """Return what differs from `start` to `end` and whether that is cut off; "" is the present state."""

    @abstractmethod
    async def sizes(self, states: Sequence[str]) -> tuple[int, ...]:
        """Return how many bytes the files of each state take beside those of the states before it in the list."""

    @abstractmethod
    async def merge(
        self, fork: "Instance", start: str, fork_start: str, fork_end: str, keep: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Bring what a fork changed from `fork_start` to `fork_end` into this box, whose state was `start` then.

        Return the paths.

        Raises:
            Conflict: Both have changed something; `details["conflicts"]` lists the paths, and nothing was merged.
        """

    async def write_layer(self, state: str, path: str) -> None:
        """Write what a state has changed over the box's image to a new file, as the tar of a layer of an OCI image.

        Raises:
            Unsupported: This engine cannot.
        """
        raise Unsupported("this engine makes no image of a box", op="image.from_box", remedy="export the box instead")

    @abstractmethod
    async def drop(self, keep: tuple[str, ...]) -> None:
        """Remove what neither the present state nor one of `keep` needs."""
