"""An admin's access to a box that somebody else may hold: it takes no lease, and every operation is logged."""

from hutch.errors import LeaseLost
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.receipts.operations import Operation
from hutch.logs import log
from hutch.model.receipts import Details
from hutch.providers.base import Instance


class AdminHandle(BoxHandle):
    """A handle that works beside the holder of the lease, whose handles go on working."""

    async def begin(self) -> Instance:
        self._epoch = self._live.record.epoch  # The box may have changed hands since the last operation.
        return await super().begin()

    def operation(self, op: str, details: Details) -> Operation:
        log("keeper").warning("admin acts past the lease", operation=op, box=self.id, by=self._session)
        return super().operation(op, details)

    async def renew(self) -> None:
        raise LeaseLost("an admin holds no lease that could be renewed", op="renew", remedy="attach to the box instead")

    async def release(self) -> None:
        """Close this handle; the holder keeps the lease."""
        self.close()

    async def destroy(self) -> None:
        log("keeper").warning("admin acts past the lease", operation="destroy", box=self.id, by=self._session)
        await self._keeper.destroy(self.id)
        self.close()
