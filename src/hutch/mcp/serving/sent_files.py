"""Files that the model has sent to the user, offered as resources that the client can list and fetch."""

import base64
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, BlobResourceContents, ReadResourceResult, Resource, ResourceLink

from hutch.errors import HutchError
from hutch.tools import Tools

SEND_FILE = "send_file"
MAX_FILES = 256
"""Most files that a client can fetch. The oldest is dropped first."""


class SentFiles:
    """Sent files of one client session. A URI is looked up and never used as a path, so nothing else can be fetched."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._files: OrderedDict[str, tuple[str, str, Resource]] = OrderedDict()
        """Maps a URI to the box, the path in it, and the resource that the client sees."""

    def add(self, facts: Mapping[str, Any]) -> ResourceLink:
        """Add a file from the structured answer of `send_file`."""
        box, path, name = str(facts["box"]), str(facts["outbox"]), str(facts["name"])
        uri = f"hutch://{box}{quote(path)}"
        resource = Resource(uri=uri, name=name, mime_type=str(facts["mime"]), size=int(facts["size"]))
        self._files[uri] = (box, path, resource)
        self._files.move_to_end(uri)
        if len(self._files) > MAX_FILES:
            self._files.popitem(last=False)
        return ResourceLink(**resource.model_dump(exclude_none=True))

    def list(self) -> list[Resource]:
        return [resource for _, _, resource in self._files.values()]

    async def read(self, uri: str) -> ReadResourceResult:
        if uri not in self._files:
            raise MCPError(code=INVALID_PARAMS, message="no such file was sent", data={"uri": uri[:200]})
        box_id, path, resource = self._files[uri]
        bound = self._tools.attachments.bounds.file_bytes
        try:
            box = await self._tools.hutch.observe(box_id)
            data = await box.files.read(path, limit=bound)
        except HutchError as error:
            raise MCPError(code=INVALID_PARAMS, message=f"it cannot be fetched: {error.message}") from error
        blob = base64.b64encode(data).decode()
        return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type=resource.mime_type, blob=blob)])
