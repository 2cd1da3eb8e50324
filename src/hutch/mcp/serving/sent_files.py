"""Files that the model has sent to the user: resources of the protocol, which the client can list and fetch."""

import base64
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, BlobResourceContents, ReadResourceResult, Resource, ResourceLink

from hutch.errors import HutchError
from hutch.tools import Tools

SEND = "send_file"
MOST = 256
"""Files a client can still fetch; the oldest is forgotten first."""


class SentFiles:
    """Of one desk. Only what was sent can be fetched: an address is looked up, never taken for a path."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._files: OrderedDict[str, tuple[str, str, Resource]] = OrderedDict()
        """From address to box, path there, and what the client is told."""

    def sent(self, facts: Mapping[str, Any]) -> ResourceLink:
        """`facts`: what `send_file` has answered."""
        box, path, name = str(facts["box"]), str(facts["outbox"]), str(facts["name"])
        uri = f"hutch://{box}{quote(path)}"
        told = Resource(uri=uri, name=name, mime_type=str(facts["mime"]), size=int(facts["size"]))
        self._files[uri] = (box, path, told)
        self._files.move_to_end(uri)
        if len(self._files) > MOST:
            self._files.popitem(last=False)
        return ResourceLink(**told.model_dump(exclude_none=True))

    def list(self) -> list[Resource]:
        return [told for _, _, told in self._files.values()]

    async def read(self, uri: str) -> ReadResourceResult:
        if uri not in self._files:
            raise MCPError(code=INVALID_PARAMS, message="no such file was sent", data={"uri": uri[:200]})
        box_id, path, told = self._files[uri]
        bound = self._tools.attachments.bounds.file_bytes
        try:
            box = await self._tools.hutch.observe(box_id)
            data = await box.files.read(path, limit=bound)
        except HutchError as error:
            raise MCPError(code=INVALID_PARAMS, message=f"it cannot be fetched: {error.message}") from error
        blob = base64.b64encode(data).decode()
        return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type=told.mime_type, blob=blob)])
