"""The engines a keeper uses: one provider object for each name, its capabilities, and the effective spec they allow."""

import asyncio
from collections.abc import Mapping

from hutch.config import Config
from hutch.errors import HutchError, NotFound, Refused, Unavailable, Unsupported
from hutch.keeper.breaker import Breaker
from hutch.model.capabilities import Capabilities
from hutch.model.places import CheckedMounts
from hutch.model.spec import EffectiveSpec, Spec
from hutch.policy import mounts
from hutch.policy.effective import effective, providers_of
from hutch.policy.imaged import imaged
from hutch.policy.profiles import Profile
from hutch.providers import registry
from hutch.providers.base import Provider


class Engines:
    """Providers are made when first asked for; a machine that never uses Docker never imports it."""

    def __init__(self, config: Config, given: dict[str, Provider] | None = None) -> None:
        self._config = config
        self._providers: dict[str, Provider] = dict(given or {})
        self._capabilities: dict[str, Capabilities] = {}
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        """Under way: a probe may make a box, and a hundred callers who come at once need only one."""
        self._breakers: dict[str, Breaker] = {}
        self._last: tuple[Spec, str, Capabilities, EffectiveSpec] | None = None

    def provider(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            provider = registry.find(name)()
            provider.settle(str(self._config.state_dir), str(self._config.run_dir))
            provider.configure(self._config.for_provider(name))
            self._providers[name] = provider
        return provider

    async def capabilities(self, name: str) -> Capabilities:
        """Probed once; an engine that was not usable is asked again, because it may have come up since (B26)."""
        known = self._capabilities.get(name)
        if known is not None and known.usable:
            return known
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = asyncio.create_task(self._probe(name))
        # One caller who gives up must not end it for the others.
        return await asyncio.shield(probe)

    async def _probe(self, name: str) -> Capabilities:
        try:
            provider = self.provider(name)
            known = await provider.probe()
            if prompt := provider.prompt():
                known = known.but(facts=known.facts | {"prompt": prompt})
            self._capabilities[name] = known
            return known
        finally:
            del self._probes[name]

    async def asked(self, name: str) -> Capabilities:
        """The same, for whoever reports: an engine that cannot even be asked is not usable, and says why."""
        try:
            return await self.capabilities(name)
        except HutchError as error:
            return Capabilities(provider=name, usable=False, reason=error.message, remedy=error.remedy)

    async def decide(self, spec: Spec, failed: Mapping[str, str] | None = None) -> tuple[Provider, EffectiveSpec]:
        """Which provider makes this box, and what policy makes of the spec on it. One that is out of order, or does not
        enforce what the profile needs, is passed by, and the adjustments say why. Never falls back to the host.

        `failed`: those that were tried for this box already, with the reasons."""
        config = self._config
        profile = config.resolve_profile(spec.profile)
        names = self._names(spec)
        passed = dict(failed or {})
        first: HutchError | None = None
        for name in names:
            if name in passed:
                continue
            if len(names) > 1 and (reason := self.breaker(name).open()):
                passed[name] = reason
                continue
            try:
                capabilities = await self.capabilities(name)
                answer = self._effective(name, spec, profile, capabilities, passed)
                provider = self.provider(name)
                return provider, imaged(answer, spec, profile, await provider.image(answer.image), capabilities)
            except (Unavailable, Unsupported, Refused, NotFound) as error:
                first = first or error
                passed[name] = error.message
        if first is not None and len(passed) == 1:
            raise first
        told = "; ".join(f"{name}: {reason}" for name, reason in passed.items())
        raise Unavailable(
            f"no provider can make this box: {told}", details={"providers": passed},
            remedy=(first.remedy if first is not None else None) or "hutch doctor",
        )  # fmt: skip

    def _effective(
        self, name: str, spec: Spec, profile: Profile, capabilities: Capabilities, passed: Mapping[str, str]
    ) -> EffectiveSpec:
        """Policy is pure and programs make boxes alike, so its last answer serves until another question comes."""
        if not passed and self._last is not None:
            asked, of, on, answer = self._last
            if asked == spec and of == name and on is capabilities:
                return answer
        config = self._config
        answer = effective(
            spec, profile, capabilities, provider=name, default_image=config.image,
            provider_image=capabilities.default_image, strict=config.strict, passed=passed,
        )  # fmt: skip
        if not passed and not spec.secrets:  # which are kept no longer than their box needs them
            self._last = spec, name, capabilities, answer
        return answer

    def others(self, spec: Spec, failed: Mapping[str, str]) -> bool:
        """Whether a provider is left that may stand in for those that failed."""
        return bool(set(self._names(spec)) - set(failed))

    def _names(self, spec: Spec) -> tuple[str, ...]:
        config = self._config
        return providers_of(spec, config.resolve_profile(spec.profile), config.provider, config.fallback)

    def breaker(self, name: str) -> Breaker:
        return self._breakers.setdefault(name, Breaker())

    def places(self, spec: EffectiveSpec) -> CheckedMounts:
        """The host places this box may show, each opened and pinned; Refused or FileMissing before anything starts."""
        roots, refused = self._config.mount_roots, self._config.never_mounted
        return mounts.check(spec.mounts, spec.workspace, spec.image, roots=roots, refused=refused)

    def in_use(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    async def close(self) -> None:
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)  # whoever asked has been told
        for provider in self._providers.values():
            await provider.close()
