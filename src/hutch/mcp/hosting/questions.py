"""Questions of a hosted server to its client: sampling from a model, or elicitation from a person.

One process serves many clients, and the protocol does not say to which request in flight a question belongs. It is
forwarded if all requests in flight are of one client, and refused if several clients could be meant.
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


class RequestsInFlight:
    """The requests that one hosted server is working on."""

    def __init__(self) -> None:
        self._contexts: list[Context] = []

    @contextmanager
    def track(self, ctx: Context) -> Iterator[None]:
        self._contexts.append(ctx)
        try:
            yield
        finally:
            self._contexts.remove(ctx)

    def sole_client(self) -> Context | None:
        """Return the context of the only client with requests in flight, or None if there is none or more than one."""
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
        ctx = self.sole_client()
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
