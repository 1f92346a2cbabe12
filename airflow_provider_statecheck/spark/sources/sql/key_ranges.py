"""Ranges of keys: from above one key up to another one, or the rows without a key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.storage.state_codec import decode_state, encode_state

_NO_KEY = "null"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys above one, as far as there is one, up to and with another."""

    above: Any = None
    """``None`` for no bound."""
    up_to: Any = None
    """``None`` for the rows whose key is null."""

    @property
    def name(self) -> str:
        """Return the name by which checkpoints know the range."""
        if self.up_to is None:
            return _NO_KEY
        return json.dumps(encode_state([self.above, self.up_to], "the key of a source"), ensure_ascii=False)

    @classmethod
    def of_name(cls, name: str) -> KeyRange:
        """
        Return the range of a name.

        :raises CorruptStateError: if it is none.
        """
        if name == _NO_KEY:
            return cls()
        try:
            above, up_to = decode_state(json.loads(name))
        except (TypeError, ValueError) as error:
            raise CorruptStateError(f"Expected a range of keys, found {name[:60]!r}: {error}.") from error
        return cls(above, up_to)

    def __str__(self) -> str:
        if self.up_to is None:
            return "rows without a key"
        return f"keys up to {self.up_to}" if self.above is None else f"keys above {self.above} up to {self.up_to}"


def ranges_between(above: Any, ends: Iterable[Any]) -> list[KeyRange]:
    """
    Return ranges without gaps.

    :param above: The key after which the first one begins.
    :param ends: The last key of each, ascending; what comes twice counts once.
    """
    distinct = list(dict.fromkeys(ends))
    return [KeyRange(low, high) for low, high in pairwise([above, *distinct])]


def equal_widths(lowest: Any, highest: Any, count: int) -> list[Any]:
    """
    Return the last key of each of some ranges of equal width; there are fewer where keys are too close together.

    :raises InvalidConfigurationError: if keys are no numbers, days or times.
    """
    if isinstance(lowest, bool) or not isinstance(lowest, int | float | Decimal | date):
        raise InvalidConfigurationError(
            f"Expected keys to be numbers, days or times where ranges is given, found {type(lowest).__name__}; leave it out "
            "to cut by counting rows."
        )
    span = highest - lowest
    between = [lowest + _share(span, i, count) for i in range(1, count)]
    return [*(end for end in dict.fromkeys(between) if end < highest), highest]


def _share(span: Any, number: int, count: int) -> Any:
    # Of whole numbers and times the parts are whole again, however large they are.
    return span * number // count if isinstance(span, int | timedelta) else span * number / count
