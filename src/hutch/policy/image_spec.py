"""What an image says about its commands, put where neither the caller nor the profile has said anything. Pure."""

from hutch.model.capabilities import Capabilities
from hutch.model.images import ImageDefaults
from hutch.model.spec import Adjustment, EffectiveSpec, Spec
from hutch.policy.profiles import Profile


def imaged(
    answer: EffectiveSpec, spec: Spec, profile: Profile, image: ImageDefaults | None, capabilities: Capabilities
) -> EffectiveSpec:
    """The effective spec over the image's own defaults: its variables lie below all others."""
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
