"""Hutch: isolated boxes for AI agents that start in milliseconds.

    async with Hutch() as hutch:
        async with hutch.box() as box:
            print((await box.exec("echo hello")).stdout)

Importing this is cheap and works on every platform; the parts are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch.api import Box, Files, Job
    from hutch.errors import HutchError
    from hutch.front import Hutch

__version__ = "0.1.0"
__all__ = ["Box", "Files", "Hutch", "HutchError", "Job", "__version__"]

_HOMES = {"Hutch": "hutch.front", "HutchError": "hutch.errors"} | dict.fromkeys(("Box", "Files", "Job"), "hutch.api")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hutch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
