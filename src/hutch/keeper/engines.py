"""The engines of a keeper: a provider for each name, its capabilities, its circuit breaker, and the choice of one."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hutch.config import Config, directories
from hutch.errors import HutchError, NotFound, Refused, Unavailable, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.spec import CheckedMounts, EffectiveSpec, Spec
from hutch.policy import mounts, rights
from hutch.policy.effective import effective, providers_of, with_image_defaults
from hutch.policy.profiles import Profile
from hutch.providers import registry
from hutch.providers.base import Provider

if TYPE_CHECKING:
    from hutch.kernels.warm.templates import Templates

MAX_FAILURES = 3
"""Failures in a row after which an engine is not tried for a while."""
COOL_DOWN_SECONDS = 30.0


class Breaker:
    """The circuit breaker of one engine: it opens after repeated failures of the engine's own.

    After `COOL_DOWN_SECONDS` one caller may try; its success closes the breaker.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._opened = 0.0
        self._reason = ""

    def record_failure(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
        if self._failures >= MAX_FAILURES:
            self._opened = time.monotonic()

    def record_success(self) -> None:
        self._failures, self._opened, self._reason = 0, 0.0, ""

    def try_engine(self) -> str:
        """Return why the engine must not be tried now, or "" if it may.

        After the cool-down the first caller gets the trial, and the others wait for another cool-down.
        """
        if not self._opened:
            return ""
        if time.monotonic() - self._opened >= COOL_DOWN_SECONDS:
            self._opened = time.monotonic()
            return ""
        return self.open_reason()

    def open_reason(self) -> str:
        """Answer like `try_engine` for a report, without using up the trial."""
        if not self._opened or time.monotonic() - self._opened >= COOL_DOWN_SECONDS:
            return ""
        return f"it failed {self._failures} times in a row, the last time: {self._reason}"


T = TypeVar("T")

USABLE_SECONDS = 30.0
"""How long a report trusts a good probe, or a box that was created since, before it asks the engine again."""
UNUSABLE_SECONDS = 10.0
"""How long a report trusts a bad probe: anybody may ask for readiness, and each probe may create a box."""


class EngineChoice(NamedTuple):
    """The engine that would create a box of the default profile now."""

    provider: str
    """Empty if there is none."""
    passed: Mapping[str, str]
    """The engines that were skipped, each with the reason."""
    reason: str = ""
    remedy: str = ""


class Engines:
    """Providers are created when first asked for; a machine that never uses Docker never imports it."""

    def __init__(self, config: Config, given: dict[str, Provider] | None = None) -> None:
        self._config = config
        self._providers: dict[str, Provider] = dict(given or {})
        self._capabilities: dict[str, Capabilities] = {}
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        """Probes in progress: a probe may create a box, so callers who come at once share one."""
        self._confirmed: dict[str, float] = {}
        """When each engine was last probed or created a box (monotonic)."""
        self._doubted: set[str] = set()
        """Engines that failed since they were probed: a report probes them again, however recent the probe is."""
        self._report_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One report asks an engine at a time; the others wait for its answer."""
        self._breakers: dict[str, Breaker] = {}
        self._last: tuple[Spec, str, Capabilities, EffectiveSpec] | None = None

    def provider(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            provider = registry.find(name)()
            if self._config.enabled:  # An engine that creates a part of them would leave the rest to the umask.
                directories.make(self._config.state_dir)
                directories.make(self._config.run_dir)
            provider.set_directories(str(self._config.state_dir), str(self._config.run_dir))
            provider.configure(self._config.for_provider(name))
            self._providers[name] = provider
        return provider

    async def capabilities(self, name: str) -> Capabilities:
        """Return the probed capabilities. An unusable engine is probed again, because it may have come up since."""
        known = self._capabilities.get(name)
        if known is not None and known.usable:
            return known
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = asyncio.create_task(self._probe(name))
        # A caller who gives up must not end the probe for the others.
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

    def record_success(self, name: str) -> None:
        """Note that the engine created a box, so it is usable."""
        self.breaker(name).record_success()
        self._confirmed[name] = time.monotonic()

    def record_failure(self, name: str, reason: str) -> None:
        """Note that the engine could not create a box, for a reason of its own."""
        self.breaker(name).record_failure(reason)
        self.forget_probe(name)

    def forget_probe(self, name: str) -> None:
        """After a failure the next report must not rest on an older probe."""
        self._doubted.add(name)
        if name in self._providers:
            self._providers[name].forget_probe()

    async def current_capabilities(self, name: str) -> Capabilities:
        """Return the capabilities for a report, probed again after a failure and after a while.

        So no dead engine stays reported as usable. An engine that cannot even be probed is unusable and says why.
        """
        if (known := self._fresh(name)) is not None:
            return known
        async with self._report_locks[name]:
            if (known := self._fresh(name)) is not None:
                return known  # Another report asked meanwhile.
            try:
                if await self._still_answers(name):
                    return self._capabilities[name]
                self._capabilities.pop(name, None)
                return await self.capabilities(name)
            except HutchError as error:
                return Capabilities(provider=name, usable=False, reason=error.message, remedy=error.remedy)

    def _fresh(self, name: str) -> Capabilities | None:
        """Return what is known of an engine, if it is recent enough for a report."""
        known = self._capabilities.get(name)
        if known is None or name in self._doubted:
            return None
        age = time.monotonic() - self._confirmed[name]
        return known if age < (USABLE_SECONDS if known.usable else UNUSABLE_SECONDS) else None

    async def _still_answers(self, name: str) -> bool:
        """Whether a usable engine without failures still answers, so that it need not be probed again."""
        known = self._capabilities.get(name)
        if known is None or not known.usable or name in self._doubted:
            return False
        try:
            await self.provider(name).check()
        except HutchError:
            self.forget_probe(name)  # The probe that follows says what is wrong.
            return False
        self._confirmed[name] = time.monotonic()
        return True

    async def available(self) -> EngineChoice:
        """Return the engine of the chain that can create a box of the default profile now.

        Every report rests on this, so a working fallback is seen. It fetches no image and uses up no breaker's trial.
        """
        spec, passed = Spec(), dict[str, str]()
        profile = self._config.resolve_profile(spec.profile)

        async def attempt(name: str) -> str:
            self._effective(name, spec, profile, await self.current_capabilities(name), passed)
            return name

        try:
            return EngineChoice(await self._first_of_chain(spec, passed, attempt, Breaker.open_reason), passed)
        except HutchError as error:
            return EngineChoice("", passed, error.message, error.remedy or "hutch doctor")

    async def decide(self, spec: Spec, failed: Mapping[str, str] | None = None) -> tuple[Provider, EffectiveSpec]:
        """Choose the provider for a box, and return it with the spec that policy allows on it.

        A provider that is out of order, or does not enforce what the profile needs, is skipped, and the adjustments
        say why. The host is never a fallback. `failed` has the providers that were tried for this box already, with
        the reasons.
        """
        profile = self._config.resolve_profile(spec.profile)
        passed = dict(failed or {})

        async def attempt(name: str) -> tuple[Provider, EffectiveSpec]:
            capabilities = await self.capabilities(name)
            answer = self._effective(name, spec, profile, capabilities, passed)
            provider = self.provider(name)
            try:
                if not rights.current().pull:
                    await self._check_pull(provider, answer.image, profile, capabilities)
                image = await provider.image(answer.image)
            except Unavailable:  # The engine does not answer, although its probe succeeded.
                self.forget_probe(name)
                raise
            answer = with_image_defaults(answer, spec, profile, image, capabilities)
            return provider, rights.within(answer, profile, rights.current())

        return await self._first_of_chain(spec, passed, attempt, Breaker.try_engine)

    async def plan(self, spec: Spec) -> EffectiveSpec:
        """Return the spec that a box of this caller would have. It fetches no image and uses up no breaker's trial."""
        config, passed = self._config, dict[str, str]()
        spec = rights.admitted(spec, rights.current(), config.profile, config.profiles)
        profile = config.resolve_profile(spec.profile)

        async def attempt(name: str) -> EffectiveSpec:
            answer = self._effective(name, spec, profile, await self.current_capabilities(name), passed)
            return rights.within(answer, profile, rights.current())

        return (await self._first_of_chain(spec, passed, attempt, Breaker.open_reason)).shown()

    async def _check_pull(
        self, provider: Provider, image: str, profile: Profile, capabilities: Capabilities
    ) -> None:  # fmt: skip
        """Images that the operator named are pulled for everybody, others only for callers who may pull."""
        named = (self._config.image, profile.image, capabilities.default_image)
        if image.startswith("oci:") and image not in named and await provider.needs_pull(image):
            rights.check_pull(image, rights.current())

    async def _first_of_chain(
        self,
        spec: Spec,
        passed: dict[str, str],
        attempt: Callable[[str], Awaitable[T]],
        breaker_reason: Callable[[Breaker], str],
    ) -> T:
        """Return the first successful `attempt` on a provider of the chain; `passed` gets the reasons of the others."""
        names = self._names(spec)
        first: HutchError | None = None
        for name in names:
            if name in passed:
                continue
            if len(names) > 1 and (reason := breaker_reason(self.breaker(name))):
                passed[name] = reason
                continue
            try:
                return await attempt(name)
            except (Unavailable, Unsupported, Refused, NotFound) as error:
                first = first or error
                passed[name] = error.message
        if first is not None and len(passed) == 1:
            raise first
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed.items())
        raise Unavailable(
            f"no provider can make this box: {reasons}", details={"providers": passed},
            remedy=(first.remedy if first is not None else None) or "hutch doctor",
        )  # fmt: skip

    def _effective(
        self, name: str, spec: Spec, profile: Profile, capabilities: Capabilities, passed: Mapping[str, str]
    ) -> EffectiveSpec:
        """Policy is pure and programs create many boxes of one spec, so the last answer is cached."""
        if not passed and self._last is not None:
            asked, of, on, answer = self._last
            if asked == spec and of == name and on is capabilities:
                return answer
        config = self._config
        answer = effective(
            spec, profile, capabilities, provider=name, default_image=config.image,
            provider_image=capabilities.default_image, strict=config.strict, passed=passed,
        )  # fmt: skip
        if not passed and not spec.secrets:  # Secrets are kept no longer than their box needs them.
            self._last = spec, name, capabilities, answer
        return answer

    def has_alternative(self, spec: Spec, failed: Mapping[str, str]) -> bool:
        """Whether a provider of the chain is left besides those that failed."""
        return bool(set(self._names(spec)) - set(failed))

    def _names(self, spec: Spec) -> tuple[str, ...]:
        config = self._config
        return providers_of(spec, config.resolve_profile(spec.profile), config.provider, config.fallback)

    def breaker(self, name: str) -> Breaker:
        return self._breakers.setdefault(name, Breaker())

    def check_mounts(self, spec: EffectiveSpec) -> CheckedMounts:
        """Return the host mounts of a box, each opened and pinned; Refused or FileMissing before anything starts."""
        config = self._config
        return mounts.check(
            spec.mounts, spec.workspace, spec.image, roots=config.mount_roots, refused=config.never_mounted,
            unwritable=config.never_writable,
        )  # fmt: skip

    def in_use(self) -> tuple[Provider, ...]:
        return tuple(self._providers.values())

    @cached_property
    def templates(self) -> "Templates":
        """The interpreters that are forked into boxes as kernels."""
        from hutch.kernels.warm.templates import Templates  # Most keepers run no code.

        return Templates(self._config.state_dir)

    async def close(self) -> None:
        if "templates" in self.__dict__:
            await self.templates.close()
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)  # Whoever asked has been answered.
        for provider in self._providers.values():
            await provider.close()
