"""What a provider brings for its own boxes: tools and guidance, seen only while one of them is current (P13, P2)."""

import msgspec

from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.tools.definition import Tool


class ProviderKit(Record, frozen=True, kw_only=True):
    """Given to `Tools(provider_tools={NAME: ProviderKit(...)})`."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""

    def marked(self, provider: str) -> tuple[Tool, ...]:
        """Shown by origin; they are part of the provider and no ordinary tools."""
        return tuple(msgspec.structs.replace(tool, origin=f"provider:{provider}") for tool in self.tools)


def prompt_of(provider: str, kit: ProviderKit | None, capabilities: tuple[Capabilities, ...]) -> str:
    """A provider's guidance: from its kit, else from what it says of itself (`facts["prompt"]`)."""
    if kit is not None and kit.prompt:
        return kit.prompt
    for each in capabilities:
        if each.provider == provider:
            return each.facts.get("prompt", "")
    return ""
