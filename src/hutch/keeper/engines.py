"""The engines a keeper uses: one provider object for each name, its capabilities, and the effective spec they allow."""

from hutch.config import Config
from hutch.errors import Unavailable
from hutch.model.capabilities import Capabilities
from hutch.model.spec import EffectiveSpec, Spec
from hutch.policy.effective import effective
from hutch.providers import registry
from hutch.providers.base import Provider


class Engines:
    """Providers are made when first asked for; a machine that never uses Docker never imports it."""

    def __init__(self, config: Config, given: dict[str, Provider] | None = None) -> None:
        self._config = config
        self._providers: dict[str, Provider] = dict(given or {})
        self._capabilities: dict[str, Capabilities] = {}

    def provider(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            provider = registry.find(name)()
            provider.configure(self._config.for_provider(name))
            self._providers[name] = provider
        return provider

    async def capabilities(self, name: str) -> Capabilities:
        """Probed once; an engine that was not usable is asked again, because it may have come up since (B26)."""
        known = self._capabilities.get(name)
        if known is None or not known.usable:
            known = self._capabilities[name] = await self.provider(name).probe()
        return known

    async def decide(self, spec: Spec) -> tuple[Provider, EffectiveSpec]:
        """Which provider makes this box, and what policy makes of the spec on it. Never falls back to the host."""
        name = spec.provider or self._config.provider
        capabilities = await self.capabilities(name)
        if not capabilities.usable:
            raise Unavailable(
                f"provider {name} cannot be used here: {capabilities.reason}",
                op="create",
                retryable=False,
                remedy=capabilities.remedy or "run `hutch doctor`",
            )
        return self.provider(name), effective(spec, self._config.policy(), capabilities)

    def in_use(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
