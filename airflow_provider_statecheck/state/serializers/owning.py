"""Values that are put into state one by one: each is checked when it is put, and becomes the state's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.description import describe
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer

Own = Callable[[Any], Any]
"""Returns a value as state keeps it; raises ``UnsupportedStateError`` for one that does not fit."""

_EXACT_INTEGERS_OF_A_FLOAT = 2**53


class Plain(NamedTuple):
    """Values that cannot be changed and that come back from a checkpoint as they are, told by their class alone or nearly."""

    kind: type
    """Their class, and no subclass of it."""
    fits: Callable[[Any], bool] | None = None
    """Tells whether a value of that class can be written; ``None`` if each can that is within the bounds."""
    bounds: tuple[int, int] | None = None
    """The least and the greatest value."""

    def all_fit(self, values: Collection[Any]) -> bool:
        """Tell whether all of many values are known to fit."""
        if not {self.kind}.issuperset(map(type, values)):
            return False
        if self.bounds is not None and values:
            return bool(self.bounds[0] <= min(values) and max(values) <= self.bounds[1])
        return self.fits is None or all(map(self.fits, values))


def compiled_check(columns: Sequence[Plain]) -> Callable[[Sequence[Any]], bool]:
    """
    Return what tells whether the values of one row are known to fit, each in its column.

    It runs for each value that is put into state, so it is one expression: a loop would take five times as long.
    """
    names: dict[str, Any] = {}
    terms = [f"len(row) == {len(columns)}"]
    for at, (kind, fits, bounds) in enumerate(columns):
        names |= {f"kind{at}": kind, f"fits{at}": fits}
        terms.append(f"type(row[{at}]) is kind{at}")
        terms += [] if bounds is None else [f"{bounds[0]} <= row[{at}] <= {bounds[1]}"]
        terms += [] if fits is None else [f"fits{at}(row[{at}])"]
    check: Callable[[Sequence[Any]], bool] = eval(f"lambda row: {' and '.join(terms)}", names)  # noqa: S307 - only the above
    return check


def own_of(serializer: TypeSerializer[Any]) -> Own:
    """Return what checks a value and makes it the state's own: the serializer's ``own``, else a way through Arrow and back."""
    own: Own | None = getattr(serializer, "own", None)
    return partial(own_through_arrow, serializer) if own is None else own


def own_through_arrow(serializer: TypeSerializer[Any], value: Any) -> Any:
    """
    Return a value as it comes back from a checkpoint.

    :raises UnsupportedStateError: for a value of another type.
    """
    array = serializer.to_arrow([value])
    if array.null_count:
        raise UnsupportedStateError(
            f"Expected {describe(serializer.snapshot())}, found None; declare the type as optional, or leave the value out."
        )
    return serializer.from_arrow(array)[0]


def plain_of(serializer: TypeSerializer[Any]) -> Plain | None:
    """Return which values of a serializer are known to fit at a glance, ``None`` if none is."""
    found: Plain | None = getattr(serializer, "plain", None)
    return found


def plain_of_arrow(arrow_type: Any) -> Plain | None:
    """Return which values of a type are known to fit at a glance, ``None`` if none is."""
    import pyarrow.types as pat

    kinds: tuple[tuple[Callable[[Any], bool], Callable[[Any], Plain]], ...] = (
        (pat.is_integer, _integers),
        (pat.is_float64, lambda _: Plain(float)),
        (lambda t: pat.is_string(t) or pat.is_large_string(t), lambda _: Plain(str, _has_bytes)),
        (pat.is_boolean, lambda _: Plain(bool)),
        (lambda t: pat.is_binary(t) or pat.is_large_binary(t), lambda _: Plain(bytes)),
        (pat.is_date32, lambda _: Plain(date)),
        (lambda t: pat.is_timestamp(t) and t.unit == "us" and t.tz is None, lambda _: Plain(datetime, _is_local)),
    )
    return next((plain(arrow_type) for holds, plain in kinds if holds(arrow_type)), None)


def quick_own(arrow_type: Any, plain: Plain | None, own: Own) -> Own:
    """
    Return a function that returns what ``own`` does, but sooner for the usual values of a type.

    :param plain: Which values are known to fit.
    :param own: Decides on every other value.
    """
    import pyarrow.types as pat

    if pat.is_decimal128(arrow_type):
        return _decimals(arrow_type, own)
    if pat.is_float64(arrow_type):
        return _floats(own)
    if plain is None:
        return own
    if plain.kind is str:
        return lambda value: value if type(value) is str and (value.isascii() or _has_bytes(value)) else own(value)
    kind: Any = plain.kind
    fits, bounds = plain.fits, plain.bounds
    if bounds is not None:
        low, high = bounds
        return lambda value: value if type(value) is kind and low <= value <= high else own(value)
    if fits is None:
        return lambda value: value if type(value) is kind else own(value)
    return lambda value: value if type(value) is kind and fits(value) else own(value)


def _integers(arrow_type: Any) -> Plain:
    import pyarrow.types as pat

    bits, is_signed = arrow_type.bit_width, pat.is_signed_integer(arrow_type)
    bounds = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return Plain(int, bounds=bounds)


def _has_bytes(text: str) -> bool:
    try:
        # Half of a surrogate pair has none.
        return text.encode() is not None
    except UnicodeError:
        return False


def _is_local(time: datetime) -> bool:
    return time.tzinfo is None and not time.fold


def _floats(own: Own) -> Own:
    low, high = -_EXACT_INTEGERS_OF_A_FLOAT, _EXACT_INTEGERS_OF_A_FLOAT

    def owned(value: Any) -> Any:
        if type(value) is float:
            return value
        return float(value) if type(value) is int and low <= value <= high else own(value)

    return owned


def _decimals(arrow_type: Any, own: Own) -> Own:
    # As it comes back: with all the digits of its scale.
    digits = Decimal((0, (1,), -arrow_type.scale))
    exact = Context(prec=arrow_type.precision, traps=[Inexact, InvalidOperation])

    def owned(value: Any) -> Any:
        if type(value) is not Decimal or not value.is_finite():
            return own(value)
        try:
            return value.quantize(digits, context=exact)
        except ArithmeticError:
            return own(value)

    return owned
