"""The tools of a model without `await`: `Tools(hutch).call("exec", {"command": "ls"})`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, Self, TypeVar

from hutch import tools
from hutch.model.questions import Answer, AskRequest
from hutch.sync.hutch import Hutch
from hutch.sync.portal import Wrapper, blocking
from hutch.tools.result import ToolResult

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Tools(Wrapper[tools.Tools]):
    """See `hutch.tools.Tools`. `ask` and `progress` are ordinary functions, which are called in a thread."""

    def __init__(
        self, hutch: Hutch, *, ask: Callable[[AskRequest], Answer | str] | None = None, **options: Any
    ) -> None:
        in_thread = _in_thread(ask) if ask is not None else None
        super().__init__(hutch._portal, tools.Tools(hutch._inner, ask=in_thread, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, name: str, arguments: object = None, *, agent: str | None = None,
        progress: Callable[[float, float | None, str], None] | None = None, message: str = "",
    ) -> ToolResult:  # fmt: skip
        """Run a tool. Errors of the model or the box are data; an interrupt (Ctrl-C) kills the command."""
        report = _in_thread(progress) if progress is not None else None
        return self._portal.run(
            self._inner.call(name, arguments, agent=agent, progress=report, message=message)
        )  # fmt: skip

    def answer_openai(self, message: Mapping[str, Any], **options: Any) -> list[dict[str, Any]]:
        """Return the `tool` messages that answer the `tool_calls` of an assistant message (chat completions)."""
        return self._portal.run(tools.answer_openai(self._inner, message, **options))

    def answer_anthropic(self, message: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Return the user message with a `tool_result` for each `tool_use` of an assistant message."""
        return self._portal.run(tools.answer_anthropic(self._inner, message, **options))

    schemas = blocking(tools.Tools.schemas)
    status = blocking(tools.Tools.status)
    guidance = blocking(tools.Tools.guidance)
    forget = blocking(tools.Tools.forget)
    close = blocking(tools.Tools.close)


def _in_thread(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Call an ordinary function off the event loop, so that it may use the waiting API itself."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    return call
