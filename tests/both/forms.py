"""How a test of both forms opens a Hutch, and how long it waits."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from hutch import Hutch

Open = Callable[..., AbstractAsyncContextManager[Hutch]]
TIMEOUT = 30.0
