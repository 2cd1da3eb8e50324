"""Tools and guidance that a provider adds for its own boxes. Agents see them only while such a box is current."""

import msgspec

from hutch.errors import Invalid
from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.tools.definition import Tool

ENTRY_POINTS = "hutch.provider_tools"
"""Entry point group in which a package maps its provider's name to a ProviderKit."""


class ProviderKit(Record, frozen=True, kw_only=True):
    """A provider's tools and prompt, passed to `Tools(provider_tools={NAME: ...})` or found through the entry point."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""

    def with_origin(self, provider: str) -> tuple[Tool, ...]:
        """Return the tools marked as the provider's, so that status distinguishes them from built-in tools."""
        return tuple(msgspec.structs.replace(tool, origin=f"provider:{provider}") for tool in self.tools)


def installed_kits() -> dict[str, ProviderKit]:
    """Load the kits of the packages that are installed in this environment."""
    from importlib.metadata import entry_points

    found = {}
    for point in entry_points(group=ENTRY_POINTS):
        kit = point.load()
        if not isinstance(kit, ProviderKit):
            raise Invalid(
                f"entry point {point.value} of {ENTRY_POINTS} is no ProviderKit", remedy="correct that package"
            )
        found[point.name] = kit
    return found


def provider_prompt(provider: str, kit: ProviderKit | None, capabilities: tuple[Capabilities, ...]) -> str:
    """Return a provider's guidance from its kit, or else from its own facts (`facts["prompt"]`)."""
    if kit is not None and kit.prompt:
        return kit.prompt
    for each in capabilities:
        if each.provider == provider:
            return each.facts.get("prompt", "")
    return ""
