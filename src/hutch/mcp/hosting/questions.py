"""What a hosted server asks its client: a model's answer, or a person's.

One process serves many clients. A question belongs to a request in flight, and the protocol does not say to which: it
is passed on where all requests in flight are one client's, and refused where two clients could be meant.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import mcp.types as types
from mcp.client.session import ClientRequestContext
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel

from mcp import MCPError

Context = ServerRequestContext[Any, Any]
R = TypeVar("R", bound=BaseModel)


class Flying:
    """The requests that one hosted server works on now."""

    def __init__(self) -> None:
        self._contexts: list[Context] = []

    @contextmanager
    def one(self, ctx: Context) -> Iterator[None]:
        self._contexts.append(ctx)
        try:
            yield
        finally:
            self._contexts.remove(ctx)

    def asker(self) -> Context | None:
        """The client that is meant; None: nobody, or more than one could be."""
        clients = {id(ctx.session._connection) for ctx in self._contexts}
        return self._contexts[-1] if len(clients) == 1 else None

    # --- the SDK's callbacks ------------------------------------------------------------------------------------

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        return await self._pass(types.CreateMessageRequest(params=params), types.CreateMessageResult)

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        return await self._pass(types.ElicitRequest(params=params), types.ElicitResult)

    async def _pass(self, request: Any, kind: type[R]) -> "R | types.ErrorData":
        ctx = self.asker()
        if ctx is None:
            return types.ErrorData(
                code=types.INVALID_REQUEST, message="no client, or more than one, could be meant by this question"
            )
        try:
            return await ctx.session.send_request(
                request, kind, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
            )
        except NoBackChannelError:
            return types.ErrorData(code=types.INVALID_REQUEST, message="this client cannot be asked anything")
        except MCPError as error:
            return error.error
