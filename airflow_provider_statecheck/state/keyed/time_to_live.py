"""When values expire: a configuration and a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.state.serializers.ttl_serializer import TtlValue
from airflow_provider_statecheck.state.ttl import StateTtlConfig, StateVisibility, UpdateType


class TimeToLive:
    """
    Tells what is expired, and renews what is read.

    :param config: How long values live, and what renews them.
    :param now_ms: The time, in milliseconds.
    """

    __slots__ = ("_lifetime", "_now_ms", "renews_on_read", "shows_expired")

    def __init__(self, config: StateTtlConfig, now_ms: Callable[[], int]) -> None:
        self._lifetime = config.ttl_ms
        self._now_ms = now_ms
        self.renews_on_read = config.update_type is UpdateType.ON_READ_AND_WRITE
        self.shows_expired = config.state_visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    def stamped(self, value: Any) -> TtlValue:
        """Return a value as it is stored now."""
        return TtlValue(value, self._now_ms())

    def is_expired(self, stored: TtlValue) -> bool:
        """Tell whether a value has lived as long as it may."""
        return stored.last_access_ms + self._lifetime <= self._now_ms()

    def renewed(self, stored: TtlValue) -> TtlValue:
        """Return a live value as it is stored after reading; the same one if reading does not renew."""
        return self.stamped(stored.value) if self.renews_on_read else stored

    def after_read(self, stored: list[TtlValue]) -> list[TtlValue]:
        """Return what stays of values that were read; the same list if nothing changes."""
        live = [value for value in stored if not self.is_expired(value)]
        if self.renews_on_read:
            return [self.stamped(value.value) for value in live]
        return stored if len(live) == len(stored) else live

    def stamped_column(self, values: Any) -> Any:
        """Return an Arrow array of values as it is stored now, null where there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        times = pa.repeat(pa.scalar(self._now_ms(), pa.int64()), len(values))
        return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"], mask=pc.is_null(values))

    def expired_column(self, stored: Any) -> Any:
        """Tell for each stored value whether it has lived as long as it may; not where there is none."""
        import pyarrow.compute as pc

        oldest = self._now_ms() - self._lifetime
        return pc.fill_null(pc.less_equal(pc.struct_field(stored, "last_access_ms"), oldest), False)

    def unexpired_column(self, stored: Any, expired: Any) -> Any:
        """Return the values of those that are not expired, null in place of the others."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # A null index is a null value, of any type.
        rows = pc.if_else(expired, pa.scalar(None, pa.int64()), pa.array(range(len(stored)), pa.int64()))
        return pc.struct_field(stored, "value").take(rows)

    def visible_column(self, stored: Any, expired: Any) -> Any:
        """Return the values that can be seen, null in place of the others."""
        import pyarrow.compute as pc

        return pc.struct_field(stored, "value") if self.shows_expired else self.unexpired_column(stored, expired)
