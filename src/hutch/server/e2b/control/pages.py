"""Pages of lists: the token of the next page is the last id of this one."""

from hutch.errors import Invalid
from hutch.keeper.boxes.records import BoxRecord

MAX_PAGE = 100


def page_of(found: list[BoxRecord], query: dict[str, str]) -> tuple[list[BoxRecord], str]:
    """Return the page that a query asks for, and the token of the next one; empty if this is the last."""
    limit = query.get("limit", str(MAX_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MAX_PAGE):
        raise Invalid(f"limit is a number from 1 to {MAX_PAGE}")
    after = query.get("nextToken", "")
    start = 0
    if after:
        start = next((index + 1 for index, record in enumerate(found) if record.id == after), len(found))
    page = found[start : start + int(limit)]
    more = start + int(limit) < len(found)
    return page, page[-1].id if more and page else ""
