"""Makes the addresses of previews: a grant in the access table, and the names by which it is reached."""

from hutch.errors import Conflict
from hutch.keeper.boxes.live import Live
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.open_store import open_key
from hutch.model.boxes import Preview
from hutch.model.ids import BoxId
from hutch.server.previews.access import AccessTable, Grant
from hutch.server.previews.hosts import NO_TOKEN, PATH_PREFIX, PortName, PreviewHosts

QUERY = "hutch_preview"
"""The parameter of an address that holds the token at the first visit."""


class Previews:
    """The previews of one server."""

    def __init__(self, keeper: Keeper, own_names: frozenset[str] = frozenset()) -> None:
        self._keeper = keeper
        self._own_names = own_names
        self.access = AccessTable(keeper.store, open_key(keeper.config).derived("tokens of previews"))
        self.hosts = self._hosts("http://localhost")
        self._url = ""
        keeper.states.listeners.append(self.access.on_event)
        keeper.previews = self

    def listen(self, url: str) -> None:
        """Say where the server is reached by TCP; empty if it is not."""
        self._url = url
        if url:
            scheme, _, rest = url.partition("://")
            self.hosts = self._hosts(f"{scheme}://localhost:{rest.rpartition(':')[2]}")

    def _hosts(self, default: str) -> PreviewHosts:
        return PreviewHosts(self._keeper.config.server.previews or default, self._own_names)

    async def issue(self, live: Live, port: int, *, public: bool = False, ttl_sec: float = 0.0) -> Preview:
        """Open a port to everybody who has the address."""
        if not self._url:
            raise Conflict(
                "this server is not reached by TCP, so no browser can open a preview",
                remedy="start it with server.host = 127.0.0.1, or use `hutch box forward`",
            )
        record = live.record
        return self._preview(await self.access.grant(record.id, record.owner, port, public=public, ttl_sec=ttl_sec))

    async def of_box(self, box_id: BoxId) -> tuple[Preview, ...]:
        return tuple(self._preview(grant) for grant in await self.access.of_box(box_id))

    async def revoke(self, box_id: BoxId, preview_id: str) -> None:
        await self.access.revoke(box_id, preview_id)

    def _preview(self, grant: Grant) -> Preview:
        token = "" if grant.public else self.access.token(grant)
        name = PortName(grant.box_id, grant.port)
        query = f"?{QUERY}={token}" if token else ""
        return Preview(
            id=grant.id, box_id=grant.box_id, port=grant.port, token=token, public=grant.public,
            url=f"{self.hosts.origin(name)}/{query}" if grant.port else "",
            path_url=f"{self._url}{PATH_PREFIX}{name.label}/{token or NO_TOKEN}/" if grant.port else "",
            created_at=grant.created_at, expires_at=grant.expires_at,
        )  # fmt: skip
