"""The engines a keeper uses: one provider object for each name, its capabilities, and the effective spec they allow."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from hutch.config import Config, directories
from hutch.errors import HutchError, NotFound, Refused, Unavailable, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.spec import CheckedMounts, EffectiveSpec, Spec
from hutch.policy import mounts, rights
from hutch.policy.effective import effective, providers_of, with_image_defaults
from hutch.policy.profiles import Profile
from hutch.providers import registry
from hutch.providers.base import Provider

FAILURES = 3
"""In a row, until the engine is left alone."""
COOL_SECONDS = 30.0


class Breaker:
    """Of one engine."""

    def __init__(self) -> None:
        self._failures = 0
        self._opened = 0.0
        self._reason = ""

    def failed(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
        if self._failures >= FAILURES:
            self._opened = time.monotonic()

    def worked(self) -> None:
        self._failures, self._opened, self._reason = 0, 0.0, ""

    def open(self) -> str:
        """Why the engine is left alone now; empty: it may be tried. Whoever asks when the time is over is the one
        who tries: the others go on waiting for what comes of it."""
        if not self._opened:
            return ""
        if time.monotonic() - self._opened >= COOL_SECONDS:
            self._opened = time.monotonic()
            return ""
        return self.tripped()

    def tripped(self) -> str:
        """The same for a report, which tries nothing and so leaves the turn to a creation."""
        if not self._opened or time.monotonic() - self._opened >= COOL_SECONDS:
            return ""
        return f"it failed {self._failures} times in a row, the last time: {self._reason}"


T = TypeVar("T")

USABLE_SECONDS = 30.0
"""How long a report trusts a good probe, or a box that was made since, before it asks the engine again."""
UNUSABLE_SECONDS = 10.0
"""How long a report trusts a bad probe: anybody may ask whether we are ready, and each probe may make a box."""


class Choice(NamedTuple):
    """Which engine would make a box of the default profile now."""

    provider: str
    """Empty: none."""
    passed: Mapping[str, str]
    """The engines before it in the chain, or all of them, each with the reason why it does not make the box."""
    reason: str = ""
    remedy: str = ""


class Engines:
    """Providers are made when first asked for; a machine that never uses Docker never imports it."""

    def __init__(self, config: Config, given: dict[str, Provider] | None = None) -> None:
        self._config = config
        self._providers: dict[str, Provider] = dict(given or {})
        self._capabilities: dict[str, Capabilities] = {}
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        """Under way: a probe may make a box, and a hundred callers who come at once need only one."""
        self._confirmed: dict[str, float] = {}
        """When each engine was last probed or made a box (monotonic)."""
        self._doubted: set[str] = set()
        """Engines that failed since they were probed: a report asks them anew, whatever their age."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One question to an engine at a time, however many reports need its answer."""
        self._breakers: dict[str, Breaker] = {}
        self._last: tuple[Spec, str, Capabilities, EffectiveSpec] | None = None

    def provider(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            provider = registry.find(name)()
            if self._config.enabled:  # before an engine makes a part of them, which would leave the rest to the umask
                directories.make(self._config.state_dir)
                directories.make(self._config.run_dir)
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
            self._confirmed[name] = time.monotonic()
            self._doubted.discard(name)
            return known
        finally:
            del self._probes[name]

    def worked(self, name: str) -> None:
        """The engine made a box: it is there."""
        self.breaker(name).worked()
        self._confirmed[name] = time.monotonic()

    def failed(self, name: str, reason: str) -> None:
        """The engine did not make a box, for a reason of its own."""
        self.breaker(name).failed(reason)
        self.doubt(name)

    def doubt(self, name: str) -> None:
        """A creation failed, or a box could not be reached: the next report must not rest on an older probe."""
        self._doubted.add(name)
        if name in self._providers:
            self._providers[name].doubt()

    async def current_capabilities(self, name: str) -> Capabilities:
        """What the engine can do, for a report: asked anew after a failure and after a while, so that no dead engine
        stays usable (lesson 41). One that cannot even be asked is not usable, and says why."""
        if (known := self._fresh(name)) is not None:
            return known
        async with self._asking[name]:
            if (known := self._fresh(name)) is not None:
                return known  # somebody asked meanwhile
            try:
                if await self._still_there(name):
                    return self._capabilities[name]
                self._capabilities.pop(name, None)
                return await self.capabilities(name)
            except HutchError as error:
                return Capabilities(provider=name, usable=False, reason=error.message, remedy=error.remedy)

    def _fresh(self, name: str) -> Capabilities | None:
        """What is known of an engine, if it may still be reported."""
        known = self._capabilities.get(name)
        if known is None or name in self._doubted:
            return None
        age = time.monotonic() - self._confirmed[name]
        return known if age < (USABLE_SECONDS if known.usable else UNUSABLE_SECONDS) else None

    async def _still_there(self, name: str) -> bool:
        """A usable engine that nothing is known against need not be probed again while it answers."""
        known = self._capabilities.get(name)
        if known is None or not known.usable or name in self._doubted:
            return False
        try:
            await self.provider(name).check()
        except HutchError:
            self.doubt(name)  # the probe that follows says what is wrong
            return False
        self._confirmed[name] = time.monotonic()
        return True

    async def available(self) -> Choice:
        """Which engine of the chain can make a box of the default profile now: what every report rests on, so that a
        stand-in that works is seen (lesson 42). It fetches no image, and ends no breaker's waiting."""
        spec, passed = Spec(), dict[str, str]()
        profile = self._config.resolve_profile(spec.profile)

        async def able(name: str) -> str:
            self._effective(name, spec, profile, await self.current_capabilities(name), passed)
            return name

        try:
            return Choice(await self._first_of_chain(spec, passed, able, Breaker.tripped), passed)
        except HutchError as error:
            return Choice("", passed, error.message, error.remedy or "hutch doctor")

    async def decide(self, spec: Spec, failed: Mapping[str, str] | None = None) -> tuple[Provider, EffectiveSpec]:
        """Which provider makes this box, and what policy makes of the spec on it. One that is out of order, or does not
        enforce what the profile needs, is passed by, and the adjustments say why. Never falls back to the host.

        `failed`: those that were tried for this box already, with the reasons."""
        profile = self._config.resolve_profile(spec.profile)
        passed = dict(failed or {})

        async def decided(name: str) -> tuple[Provider, EffectiveSpec]:
            capabilities = await self.capabilities(name)
            answer = self._effective(name, spec, profile, capabilities, passed)
            provider = self.provider(name)
            try:
                if not rights.current().pull:
                    await self._check_pull(provider, answer.image, profile, capabilities)
                image = await provider.image(answer.image)
            except Unavailable:  # it did not answer, though its probe was good
                self.doubt(name)
                raise
            answer = with_image_defaults(answer, spec, profile, image, capabilities)
            return provider, rights.within(answer, profile, rights.current())

        return await self._first_of_chain(spec, passed, decided, Breaker.open)

    async def _check_pull(
        self, provider: Provider, image: str, profile: Profile, capabilities: Capabilities
    ) -> None:  # fmt: skip
        """What the operator named is fetched for everybody; another image only for callers who may have it fetched."""
        named = (self._config.image, profile.image, capabilities.default_image)
        if image.startswith("oci:") and image not in named and await provider.needs_pull(image):
            rights.check_pull(image, rights.current())

    async def _first_of_chain(
        self,
        spec: Spec,
        passed: dict[str, str],
        attempt: Callable[[str], Awaitable[T]],
        rests: Callable[[Breaker], str],
    ) -> T:
        """What `attempt` says of the first provider that it does not fail for; `passed` gets the reasons of others."""
        names = self._names(spec)
        first: HutchError | None = None
        for name in names:
            if name in passed:
                continue
            if len(names) > 1 and (reason := rests(self.breaker(name))):
                passed[name] = reason
                continue
            try:
                return await attempt(name)
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
        config = self._config
        return mounts.check(
            spec.mounts, spec.workspace, spec.image, roots=config.mount_roots, refused=config.never_mounted,
            unwritable=config.never_writable,
        )  # fmt: skip

    def in_use(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    async def close(self) -> None:
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)  # whoever asked has been told
        for provider in self._providers.values():
            await provider.close()
