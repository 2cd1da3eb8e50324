"""A Hutch server for clients of E2B, and their own SDK pointed at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import e2b

from hutch.server.e2b.credentials import to_e2b_key
from tests.server.serving import Server


class E2B:
    """The address of a server and a key, as the SDK takes them."""

    def __init__(self, server: Server, *, role: str = "admin", owner: str = "e2b") -> None:
        self.server = server
        self.url: str = server.announcement["url"]
        self.key = to_e2b_key(server.key(role, owner))

    @property
    def options(self) -> dict[str, str]:
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}

    @property
    def api_options(self) -> dict[str, str]:
        """The options of calls that concern no sandbox."""
        return {"api_key": self.key, "api_url": self.url}

    @property
    def environment(self) -> dict[str, str]:
        """The three variables that are all a program needs."""
        return {"E2B_API_KEY": self.key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    @contextmanager
    def sandbox(self, template: str | None = None, **options: Any) -> Iterator[e2b.Sandbox]:
        sandbox = e2b.Sandbox.create(template, **{**self.options, **options})
        try:
            yield sandbox
        finally:
            sandbox.kill()
