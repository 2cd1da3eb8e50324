"""Text that callers give where bytes are meant: the content of files, which need not be UTF-8."""

from hutch.errors import Invalid


def as_bytes(text: str | bytes) -> bytes:
    """Bytes that were read as text (`surrogateescape`) become what they were."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Invalid(f"the text has a character that UTF-8 cannot carry: {error}") from error
