"""The engines a keeper uses: one provider object for each name, its capabilities, and the effective spec they allow."""

from hutch.config import Config
from hutch.errors import HutchError
from hutch.model.capabilities import Capabilities
from hutch.model.places import CheckedMounts
from hutch.model.spec import EffectiveSpec, Spec
from hutch.policy import mounts
from hutch.policy.effective import effective, provider_of
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

    async def asked(self, name: str) -> Capabilities:
        """The same, for whoever reports: an engine that cannot even be asked is not usable, and says why."""
        try:
            return await self.capabilities(name)
        except HutchError as error:
            return Capabilities(provider=name, usable=False, reason=error.message, remedy=error.remedy)

    async def decide(self, spec: Spec) -> tuple[Provider, EffectiveSpec]:
        """Which provider makes this box, and what policy makes of the spec on it. Never falls back to the host."""
        config = self._config
        profile = config.resolve_profile(spec.profile)
        name = provider_of(spec, profile, config.provider)
        answer = effective(
            spec,
            profile,
            await self.capabilities(name),
            provider=name,
            default_image=config.image,
            strict=config.strict,
        )
        return self.provider(name), answer

    def places(self, spec: EffectiveSpec) -> CheckedMounts:
        """The host places this box may show, each opened and pinned; Refused or FileMissing before anything starts."""
        roots, refused = self._config.mount_roots, self._config.never_mounted
        return mounts.check(spec.mounts, spec.workspace, spec.image, roots=roots, refused=refused)

    def in_use(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
