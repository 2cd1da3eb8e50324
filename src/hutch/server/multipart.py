"""Uploads as `multipart/form-data`: the parts of a body as they arrive, none of them held in memory."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hutch.errors import Invalid

MAX_HEADER_BYTES = 16 << 10
MAX_PARTS = 10_000
"""Parts of one body: each file among them is work, and a line of the answer."""


class Part:
    """One file of a body. Read its content before the next part is asked for."""

    def __init__(self, name: str, filename: str, content: AsyncIterator[bytes]) -> None:
        self.name = name
        self.filename = filename
        self.content = content


class _Events:
    """What the parser has found and nobody has taken yet: headers of a part, its content (bytes), its end (None)."""

    def __init__(self, boundary: bytes) -> None:
        self.found: deque[dict[str, str] | bytes | None] = deque()
        self._headers: dict[str, str] = {}
        self._field = self._value = b""
        self.ended = False
        """Whether the last boundary was seen."""
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin, "on_part_data": self._data, "on_part_end": self._end,
                "on_header_field": self._add_field, "on_header_value": self._add_value,
                "on_header_end": self._end_header, "on_headers_finished": self._end_headers, "on_end": self._end_all,
            },
        )  # fmt: skip

    def _begin(self) -> None:
        self._headers = {}

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        if len(self._value) + len(self._field) > MAX_HEADER_BYTES:
            raise Invalid(f"the header of a part has over {MAX_HEADER_BYTES} bytes")

    def _end_header(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value.decode("utf-8", "surrogateescape")
        self._field = self._value = b""

    def _end_headers(self) -> None:
        self.found.append(self._headers)

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.found.append(data[start:end])

    def _end(self) -> None:
        self.found.append(None)

    def _end_all(self) -> None:
        self.ended = True


async def parts_of(content_type: str, pieces: AsyncIterator[bytes]) -> AsyncGenerator[Part, None]:
    """Yield the parts of a body. Invalid if it is no multipart body, or ends too early."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise Invalid("the body has no boundary: it is no multipart/form-data")
    try:
        events = _Events(boundary)
    except FormParserError as error:
        raise Invalid(f"the body has no valid boundary: {error}") from error

    async def next_event() -> dict[str, str] | bytes | None:
        while not events.found:
            piece = await anext(pieces, None)
            if piece is None:
                raise EOFError
            try:
                events.parser.write(piece)
            except FormParserError as error:
                raise Invalid(f"the body is no valid multipart/form-data: {error}") from error
        return events.found.popleft()

    async def content() -> AsyncIterator[bytes]:
        try:
            while (event := await next_event()) is not None:
                if isinstance(event, bytes):
                    yield event
        except EOFError:
            raise Invalid("the body ends in the middle of a part") from None

    count = 0
    while True:
        try:
            event = await next_event()
        except EOFError:
            if events.ended:
                return
            raise Invalid("the body ends before its last boundary") from None
        if isinstance(event, dict):
            count += 1
            if count > MAX_PARTS:
                raise Invalid(f"a body has at most {MAX_PARTS} parts", remedy="send the rest in another")
            _, described = parse_options_header(event.get("content-disposition", ""))
            name, filename = (_text(described.get(key, b"")) for key in (b"name", b"filename"))
            yield Part(name, filename, content())


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
