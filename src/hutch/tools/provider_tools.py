"""What a provider brings for its own boxes: tools and guidance, seen only while one of them is current (P13, P2)."""

import msgspec

from hutch.errors import Invalid
from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.tools.definition import Tool

ENTRY_POINTS = "hutch.provider_tools"
"""Entry points of packages: the provider's name, and its ProviderKit."""


class ProviderKit(Record, frozen=True, kw_only=True):
    """Given to `Tools(provider_tools={NAME: ProviderKit(...)})`, or found through the entry point group."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""

    def with_origin(self, provider: str) -> tuple[Tool, ...]:
        """Shown by origin; they are part of the provider and no ordinary tools."""
        return tuple(msgspec.structs.replace(tool, origin=f"provider:{provider}") for tool in self.tools)


def installed_kits() -> dict[str, ProviderKit]:
    """What the packages of this environment bring for their providers."""
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
    """A provider's guidance: from its kit, else from what it says of itself (`facts["prompt"]`)."""
    if kit is not None and kit.prompt:
        return kit.prompt
    for each in capabilities:
        if each.provider == provider:
            return each.facts.get("prompt", "")
    return ""
