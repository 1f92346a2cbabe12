"""How long keyed state lives after it was last used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_MILLISECOND = timedelta(milliseconds=1)


class UpdateType(StrEnum):
    """What makes a value live longer."""

    DISABLED = "disabled"
    """Nothing; values do not expire."""
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(StrEnum):
    """Whether a value that has expired can still be read."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """
    The time to live of a state; a value of its own for each value, element of a list and entry of a map.

    :param ttl: How long a value lives; time is the stage's, which is the logical date of the run unless it says otherwise.
    :raises InvalidConfigurationError: for less than a millisecond.
    """

    ttl: timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    state_visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        _require_positive(self.ttl)

    @property
    def is_enabled(self) -> bool:
        """Tell whether values expire at all."""
        return self.update_type is not UpdateType.DISABLED

    @property
    def ttl_ms(self) -> int:
        """Return how many milliseconds a value lives."""
        return self.ttl // _MILLISECOND

    def is_expired(self, last_access_ms: int, now_ms: int) -> bool:
        """Tell whether a value has expired that was last used at a time."""
        return self.is_enabled and last_access_ms + self.ttl_ms <= now_ms


def _require_positive(ttl: Any) -> None:
    if not isinstance(ttl, timedelta) or ttl < _MILLISECOND:
        raise InvalidConfigurationError(
            f"Expected a time to live of at least one millisecond as a datetime.timedelta, found {ttl!r}; leave ttl out "
            f"for state that does not expire."
        )
