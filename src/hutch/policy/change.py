"""A change of a live box, held to what holds for a new one: locks and maxima of its profile, rights of the caller.

Pure. Only the fields that are to change are held to it: the box keeps what it has, also where a new one would get less.
"""

from typing import TypeVar

from hutch.model.limits import Limits
from hutch.model.spec import Adjustment
from hutch.policy import values
from hutch.policy.profiles import Profile
from hutch.policy.rights import Rights

T = TypeVar("T")


class Change:
    """Gives what may be had of what is asked, and writes down in `adjustments` what was cut, and by what."""

    def __init__(self, profile: Profile, rights: Rights) -> None:
        self._profile = profile
        self._rights = rights
        self.adjustments: list[Adjustment] = []

    def choose(self, field: str, now: T, asked: T) -> T:
        """The value as it is where the profile locks the field."""
        if asked == now or not self._profile.locks(field):
            return asked
        self._note(field, asked, now, f"locked by profile {self._profile.name}")
        return now

    def limits(self, now: Limits, asked: Limits) -> Limits:
        """Each limit as it was asked, within its maxima. Invalid for a number that makes no sense."""
        fields = Limits.__struct_fields__
        given = {field: self._number(field, getattr(now, field), getattr(asked, field)) for field in fields}
        return now.but(**given)

    def clock(self, field: str, now: float, asked: float) -> float:
        """A time after which the box ends; 0 means never, which is over every maximum."""
        return float(self._number(field, now, asked))

    def _number(self, field: str, now: float, asked: float) -> float:
        if asked == now:
            return now
        values.check_number(field, asked)
        # The longest a command may ask for is no field of its own in a profile's locks.
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
"""Where 0 means that there is no end."""
