"""Base of the serializers: values are checked and become immutable copies of the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    SerializerSnapshot,
    TypeSerializer,
    describe,
    incompatible,
    require_known_version,
)

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


T = TypeVar("T")


class AbstractSerializer(ABC, Generic[T]):
    """Compares itself with snapshots of its own class; state of another class is incompatible unless a subclass knows better."""

    class_id: ClassVar[str]
    version: ClassVar[int] = 1

    @property
    @abstractmethod
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> Any:
        """
        Return an Arrow array of values, null where there is ``None``.

        :raises UnsupportedStateError: for a value of another type, naming it.
        """

    @abstractmethod
    def from_arrow(self, array: Any) -> list[T | None]:
        """Return the values of an array; each is new and may be changed."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return as JSON what tells the serializer from others of its class."""

    @abstractmethod
    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        """Compare with a config of the same class and of a version that is known."""

    @property
    def is_immutable(self) -> bool:
        """Tell whether values can be shared, as nobody can change them."""
        return True

    def copy(self, value: T) -> T:
        """Return a value that shares nothing with another that could be changed."""
        return value

    def own(self, value: Any) -> Any:
        """
        Return a value as it comes back from a checkpoint, which shares nothing that could be changed with the one given.

        :raises UnsupportedStateError: for a value of another type, naming it.
        """
        return own_through_arrow(self, value)

    def snapshot(self) -> SerializerSnapshot:
        """Return what a later version is compared with."""
        return SerializerSnapshot(class_id=self.class_id, version=self.version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """
        Say whether state that was written as ``old`` can go on with this serializer.

        :raises IncompatibleCheckpointError: if a newer version of this class wrote it.
        """
        if old.class_id != self.class_id:
            return self._resolve_other(old)
        require_known_version(old, self.version)
        return self._resolve(old.config)

    def _resolve_other(self, old: SerializerSnapshot) -> Compatibility:
        return incompatible(f"was {describe(old)}, is now {describe(self.snapshot())}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and type(other) is type(self) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), describe(self.snapshot())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self.snapshot())})"

    @property
    def _identity(self) -> Any:
        return self.config()
