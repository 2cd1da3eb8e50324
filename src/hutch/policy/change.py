"""Policy for changes of a live box: locks and maxima of its profile and rights of the caller, as for a new box.

Only the fields that change are checked: the box keeps what it has, even where a new box would get less.
"""

from typing import TypeVar

from hutch.model.limits import Limits
from hutch.model.spec import Adjustment
from hutch.policy import values
from hutch.policy.profiles import Profile
from hutch.policy.rights import Rights

T = TypeVar("T")


class Change:
    """Bounds the asked values, and lists in `adjustments` what was reduced and why."""

    def __init__(self, profile: Profile, rights: Rights) -> None:
        self._profile = profile
        self._rights = rights
        self.adjustments: list[Adjustment] = []

    def choose(self, field: str, now: T, asked: T) -> T:
        """Return the asked value, or the present one if the profile locks the field."""
        if asked == now or not self._profile.locks(field):
            return asked
        self._note(field, asked, now, f"locked by profile {self._profile.name}")
        return now

    def limits(self, now: Limits, asked: Limits) -> Limits:
        """Return each limit as asked, within its maxima. Raises Invalid for an impossible number."""
        fields = Limits.__struct_fields__
        given = {field: self._number(field, getattr(now, field), getattr(asked, field)) for field in fields}
        return now.but(**given)

    def clock(self, field: str, now: float, asked: float) -> float:
        """Bound a time after which the box ends; 0 means never, which is over every maximum."""
        return float(self._number(field, now, asked))

    def _number(self, field: str, now: float, asked: float) -> float:
        if asked == now:
            return now
        values.check_number(field, asked)
        # `max_timeout_sec` cannot be locked by itself: the lock of `timeout_sec` covers it.
        locked_as = "timeout_sec" if field == "max_timeout_sec" else field
        if self._profile.locks(locked_as):
            return self.choose(locked_as, now, asked)
        for maximum, whose in self._maxima(locked_as):
            endless = asked == 0 and field in _ENDLESS
            if maximum and (endless or asked > maximum):
                self._note(field, "none" if endless else asked, maximum, f"maximum of {whose}")
                asked = maximum
        return asked

    def _maxima(self, field: str) -> tuple[tuple[float | None, str], ...]:
        profile, rights = self._profile, self._rights
        of_profile = profile.limits.max_timeout_sec if field == "timeout_sec" else getattr(profile.maxima, field)
        return (of_profile, f"profile {profile.name}"), (getattr(rights.maxima, field), rights.place)

    def _note(self, field: str, asked: object, given: object, reason: str) -> None:
        self.adjustments.append(
            Adjustment(field=field, asked=values.text_of(asked), given=values.text_of(given), reason=reason)
        )


_ENDLESS = frozenset({"max_timeout_sec", "idle_timeout_sec", "ttl_sec"})
"""Fields in which 0 means that there is no end."""
