"""The effective spec of a box: what the caller asked, within profile and capabilities, with every change listed.

Nothing here looks at the machine: what it can do comes in as capabilities. Whether a mount's source may be shown is
decided by `policy.mounts`, which has to open it.
"""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from hutch.errors import Invalid, Unavailable
from hutch.model.capabilities import Capabilities
from hutch.model.ids import is_name
from hutch.model.images import ImageDefaults
from hutch.model.limits import Limits
from hutch.model.spec import (
    Adjustment,
    AutoCheckpoint,
    EffectiveSpec,
    Mount,
    MountMode,
    Spec,
    TtlAction,
    Workspace,
)
from hutch.policy import grades, requirements, values
from hutch.policy.profiles import Profile

T = TypeVar("T")


def providers_of(spec: Spec, profile: Profile, default: str, fallback: tuple[str, ...] = ()) -> tuple[str, ...]:
    """List the providers that may make the box, in order: the caller's alone, else that of the profile or of the
    configuration with its fallbacks. If the profile locks the provider, the caller's does not count."""
    if spec.provider and not profile.locks("provider"):
        return (spec.provider,)
    stand_ins = fallback if profile.fallback is None else profile.fallback
    return tuple(dict.fromkeys((profile.provider or default, *stand_ins)))


def effective(
    spec: Spec,
    profile: Profile,
    capabilities: Capabilities,
    *,
    provider: str,
    default_image: str | None = None,
    provider_image: str = "host",
    strict: bool = False,
    passed: Mapping[str, str] | None = None,
) -> EffectiveSpec:
    """Answer every question of a spec.

    `default_image` is the configuration's, `provider_image` the last resort; `passed` are the providers that were
    skipped, with the reasons. Raises Invalid for a wrong request, Refused by policy, Unsupported if the provider
    cannot do it, and Unavailable if the provider cannot be used here.
    """
    spec = _decoded(spec)
    if not capabilities.usable:
        raise Unavailable(
            f"provider {provider} is not usable here: {capabilities.reason or 'it does not say why'}",
            remedy=capabilities.remedy or None,
            details={"provider": provider},
        )
    choices = _Choices(profile)
    for other, reason in (passed or {}).items():
        choices.note("provider", other, provider, reason)
    workspace = _workspace(spec, profile, choices)
    limits = _within(_limits(spec, profile, choices), spec, capabilities, choices)
    answer = EffectiveSpec(
        profile=profile.name,
        provider=choices.note_choice("provider", spec.provider, provider),
        image=_image(spec, profile, choices, default_image, provider_image),
        workspace=workspace,
        workdir=_workdir(spec, profile, choices, workspace),
        user=choices.choose("user", spec.user, profile.user),
        mounts=_mounts(spec, profile, choices),
        env=choices.merge("env", spec.env, profile.env),
        secrets=choices.merge("secrets", spec.secrets, {}),
        network=choices.choose("network", spec.network, profile.network),
        allow_private=choices.choose("allow_private", spec.allow_private or None, profile.allow_private),
        limits=limits,
        read_only_root=choices.choose("read_only_root", spec.read_only_root, profile.read_only_root),
        retention=choices.choose("retention", spec.retention, profile.retention),
        idle_timeout_sec=choices.clock("idle_timeout_sec", spec.idle_timeout_sec, profile.idle_timeout_sec),
        ttl_sec=choices.clock("ttl_sec", spec.ttl_sec, profile.ttl_sec),
        ttl_action=spec.ttl_action or TtlAction.DESTROY,
        labels=choices.merge("labels", spec.labels, profile.labels),
        ports=choices.choose("ports", spec.ports or None, profile.ports),
        name=spec.name or "",
        skills=spec.skills or "all",
        auto_checkpoint=spec.auto_checkpoint or AutoCheckpoint.OFF,
        min_isolation=profile.min_isolation,
    )
    _check_values(answer, spec)
    if spec.read_only_root is None and answer.image == "host" and not capabilities.writable_root:
        answer = _read_only(answer, choices, capabilities)
    requirements.check(answer, capabilities)
    for limit in grades.check(answer, profile, capabilities, strict=strict):
        choices.note(limit, getattr(answer.limits, limit), "not enforced", f"accepted by profile {profile.name}")
    return answer.but(adjustments=tuple(choices.adjustments))


def with_image_defaults(
    answer: EffectiveSpec, spec: Spec, profile: Profile, image: ImageDefaults | None, capabilities: Capabilities
) -> EffectiveSpec:
    """Fill in what the image says about its commands where neither the caller nor the profile said anything."""
    if image is None:
        return answer
    env = {name: value for name, value in image.env.items() if name not in answer.secrets}
    answer = answer.but(env=env | answer.env)
    if image.workdir and spec.workdir is None and profile.workdir is None and not profile.locks("workdir"):
        answer = answer.but(workdir=image.workdir)
    if not image.user or image.user == answer.user or spec.user is not None:
        return answer
    if profile.user != "user" or profile.locks("user"):
        return answer
    if image.user in capabilities.users or (image.user.isdigit() and capabilities.uid_range):
        return answer.but(user=image.user)
    reason = f"the image's user: boxes of provider {answer.provider} have only one id here"
    adjustment = Adjustment(field="user", asked=image.user, given=answer.user, reason=reason)
    return answer.but(adjustments=(*answer.adjustments, adjustment))


def _read_only(answer: EffectiveSpec, choices: "_Choices", capabilities: Capabilities) -> EffectiveSpec:
    """Make the root read-only and say so, where the machine cannot give the writable root that the profile offers.

    A caller who asked for a writable root is refused instead.
    """
    if not answer.read_only_root:
        gap = requirements.missing(capabilities, "writable_root")
        choices.note("read_only_root", False, True, gap.reason if gap else f"provider {answer.provider} cannot")
    return answer.but(read_only_root=True)


def clamp_timeout(asked: float | None, limits: Limits) -> tuple[float, Adjustment | None]:
    """Return how long a command may run: its own timeout or the box's default, within the box's maximum."""
    if asked is None:
        return limits.timeout_sec, None
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise Invalid(f"timeout_sec is {asked!r}, but must be a number of seconds", details={"field": "timeout_sec"})
    values.check_number("timeout_sec", asked)
    if not limits.max_timeout_sec or asked <= limits.max_timeout_sec:
        return float(asked), None
    return limits.max_timeout_sec, Adjustment(
        field="timeout_sec",
        asked=values.text_of(float(asked)),
        given=values.text_of(limits.max_timeout_sec),
        reason="maximum of the box's profile",
    )


class _Choices:
    """Chooses between caller and profile, and records every time the caller did not get what was asked."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.adjustments: list[Adjustment] = []

    def note(self, field: str, asked: object, given: object, reason: str) -> None:
        self.adjustments.append(
            Adjustment(field=field, asked=values.text_of(asked), given=values.text_of(given), reason=reason)
        )

    def choose(self, field: str, asked: T | None, default: T) -> T:
        if asked is None or asked == default:
            return default
        if not self.profile.locks(field):
            return asked
        self.note(field, asked, default, f"locked by profile {self.profile.name}")
        return default

    def note_choice(self, field: str, asked: str | None, given: str) -> str:
        """Return a value that was chosen before, and note it if the caller asked for another."""
        if asked is not None and asked != given:
            reason = (
                f"locked by profile {self.profile.name}" if self.profile.locks(field) else "chosen by configuration"
            )
            self.note(field, asked, given, reason)
        return given

    def merge(self, field: str, asked: dict[str, str], default: dict[str, str]) -> dict[str, str]:
        """Merge the caller's entries over the profile's; notes show only the names."""
        if not self.profile.locks(field):
            return default | asked
        if any(default.get(name) != value for name, value in asked.items()):
            self.note(field, asked, default, f"locked by profile {self.profile.name}")
        return dict(default)

    def number(self, field: str, asked: Any, default: Any, maximum: Any) -> Any:
        if asked is not None:
            values.check_number(field, asked)
        value = self.choose(field, asked, default)
        if maximum is None or value <= maximum:
            return value
        # Only a caller's value can be over: a profile's own defaults are within its maxima.
        self.note(field, value, maximum, f"maximum of profile {self.profile.name}")
        return maximum

    def clock(self, field: str, asked: float | None, default: float) -> float:
        """Bound a time after which the box ends; 0 means never, which is over every maximum."""
        maximum: float | None = getattr(self.profile.maxima, field)
        if asked == 0 and maximum is not None and not self.profile.locks(field):
            self.note(field, "never", maximum, f"maximum of profile {self.profile.name}")
            return maximum
        return float(self.number(field, asked, default, maximum))


def _decoded(spec: Spec) -> Spec:
    """Check all types of a spec, which its constructor does not."""
    try:
        return Spec.from_plain(msgspec.to_builtins(spec, enc_hook=_path_as_text))
    except TypeError as error:
        raise Invalid(f"not a valid Spec: {error}") from error


def _path_as_text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(f"a value of type {type(value).__name__} has no place in a spec")


def _limits(spec: Spec, profile: Profile, choices: _Choices) -> Limits:
    longest = profile.limits.max_timeout_sec
    if profile.locks("timeout_sec"):
        longest = profile.limits.timeout_sec
    numbers = {
        field: choices.number(
            field,
            getattr(spec.limits, field),
            getattr(profile.limits, field),
            (longest or None) if field == "timeout_sec" else getattr(profile.maxima, field),
        )
        for field in values.LIMIT_NAMES
    }
    return Limits(**numbers, max_timeout_sec=longest)


def _within(limits: Limits, spec: Spec, capabilities: Capabilities, choices: _Choices) -> Limits:
    """Reduce a memory limit above what the machine has, which would limit nothing."""
    most = capabilities.memory_mb
    if spec.limits.memory_mb is None or not most or limits.memory_mb <= most:
        return limits
    choices.note("memory_mb", limits.memory_mb, most, "that is all the memory of the machine")
    return limits.but(memory_mb=most)


def _image(spec: Spec, profile: Profile, choices: _Choices, default: str | None, last: str) -> str:
    """Choose the image: the caller's, the configuration's, the profile's, the provider's; a locked one first."""
    if profile.locks("image"):
        return choices.choose("image", spec.image, profile.image or default or last)
    return spec.image or default or profile.image or last


def _workspace(spec: Spec, profile: Profile, choices: _Choices) -> Workspace:
    if spec.workspace is None:
        return profile.workspace
    return Workspace(
        source=choices.choose("workspace.source", spec.workspace.source, profile.workspace.source),
        mode=choices.choose("workspace.mode", spec.workspace.mode, profile.workspace.mode),
    )


def _workdir(spec: Spec, profile: Profile, choices: _Choices, workspace: Workspace) -> str:
    default = profile.workdir or ("/" if workspace.mode is MountMode.NONE else "/workspace")
    chosen = choices.choose("workdir", spec.workdir, default)
    plain = values.plain_path("workdir", chosen)
    if plain != chosen and chosen == spec.workdir:
        choices.note("workdir", chosen, plain, "written plainly")
    return plain


def _mounts(spec: Spec, profile: Profile, choices: _Choices) -> tuple[Mount, ...]:
    asked = spec.mounts
    if asked and profile.locks("mounts"):
        choices.note("mounts", asked, profile.mounts, f"locked by profile {profile.name}")
        asked = ()
    mounts = values.plain_mounts((*profile.mounts, *asked))
    for old, new in zip(asked, mounts[len(profile.mounts) :], strict=True):
        if old != new:
            choices.note("mounts", old.target, new.target, "written plainly")
    return mounts


def _check_values(answer: EffectiveSpec, spec: Spec) -> None:
    if spec.name is not None and not is_name(spec.name):
        raise Invalid(
            f"name is {spec.name!r}: letters, digits and _ . - only, 63 at most, a letter or digit first",
            details={"field": "name"},
        )
    if not is_name(answer.skills):
        raise Invalid(f"skills is {answer.skills[:80]!r}: all, none, or a group's name", details={"field": "skills"})
    _check_workspace(answer.workspace)
    values.check_user(answer.user)
    values.check_ports(answer.ports)
    values.check_environment("env", answer.env)
    values.check_environment("secrets", answer.secrets)
    if both := sorted(answer.env.keys() & answer.secrets.keys()):
        raise Invalid(f"{both[0]} is named in env and in secrets", details={"field": "secrets"}, remedy="keep one")
    values.check_labels(answer.labels)
    values.check_private_ranges(answer.allow_private)


def _check_workspace(workspace: Workspace) -> None:
    values.check_text("workspace source", workspace.source)
    if values.check_volume("workspace.source", workspace.source):
        return
    if workspace.source != "own" and not workspace.source.startswith("/"):
        raise Invalid(
            f"workspace source is {workspace.source!r}, but must be 'own', 'volume:NAME' or an absolute host path",
            details={"field": "workspace.source"},
        )
