"""Base class of the serializers and fast checks of values that are put into state."""

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
"""Validates a value and returns the object that state retains; raises ``UnsupportedStateError`` for a value of another type."""

_EXACT_INTEGERS_OF_A_FLOAT = 2**53
"""Largest magnitude up to which a float represents every integer exactly."""


class Plain(NamedTuple):
    """Cheap test for immutable values that a checkpoint restores unchanged."""

    kind: type
    """Exact class of the values; subclasses do not match."""
    fits: Callable[[Any], bool] | None = None
    """Further condition on a value; ``None`` if class and bounds are sufficient."""
    bounds: tuple[int, int] | None = None
    """Smallest and largest permitted value, both inclusive; ``None`` if unbounded."""

    def all_fit(self, values: Collection[Any]) -> bool:
        """Return whether all values pass the test."""
        if not {self.kind}.issuperset(map(type, values)):
            return False
        if self.bounds is not None and values:
            return bool(self.bounds[0] <= min(values) and max(values) <= self.bounds[1])
        return self.fits is None or all(map(self.fits, values))


def compiled_check(columns: Sequence[Plain]) -> Callable[[Sequence[Any]], bool]:
    """
    Return a function that tests each value of a row against its column.

    The function runs for every record that is put into state. It is compiled to one expression, because a loop takes five
    times as long.
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
    """Return the ``own`` function of a serializer; the fallback converts the value to Arrow and back."""
    own: Own | None = getattr(serializer, "own", None)
    return partial(own_through_arrow, serializer) if own is None else own


def own_through_arrow(serializer: TypeSerializer[Any], value: Any) -> Any:
    """
    Return a value as a checkpoint restores it, by conversion to Arrow and back.

    :raises UnsupportedStateError: if the value is ``None`` or has another type.
    """
    array = serializer.to_arrow([value])
    if array.null_count:
        raise UnsupportedStateError(
            f"Expected {describe(serializer.snapshot())}, found None; declare the type as optional, or leave the value out."
        )
    return serializer.from_arrow(array)[0]


def plain_of(serializer: TypeSerializer[Any]) -> Plain | None:
    """Return the cheap test of the values of a serializer, or ``None`` if it has none."""
    found: Plain | None = getattr(serializer, "plain", None)
    return found


def plain_of_arrow(arrow_type: Any) -> Plain | None:
    """Return the cheap test of the values of an Arrow type, or ``None`` if it has none."""
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
    Return a function equivalent to ``own`` that handles the usual values of a type faster.

    :param plain: The cheap test; a value that passes is returned unchanged.
    :param own: The fallback for all other values.
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
        # A lone surrogate cannot be encoded.
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
    # Arrow restores decimals with all digits of their scale.
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
    """Serializer that is compatible only with snapshots of its own class, unless a subclass overrides this."""

    class_id: ClassVar[str]
    version: ClassVar[int] = 1

    @property
    @abstractmethod
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> Any:
        """
        Return an Arrow array of values, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type.
        """

    @abstractmethod
    def from_arrow(self, array: Any) -> list[T | None]:
        """Return the values of an array as new objects."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the configuration of the serializer as JSON values."""

    @abstractmethod
    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        """Compare with a configuration of the same class in a supported version."""

    @property
    def is_immutable(self) -> bool:
        """Return whether values are immutable and can be shared."""
        return True

    def copy(self, value: T) -> T:
        """Return a copy of a value that shares no mutable object with it."""
        return value

    def own(self, value: Any) -> Any:
        """
        Return a value as a checkpoint restores it, without any mutable object of the given one.

        :raises UnsupportedStateError: if a value has another type.
        """
        return own_through_arrow(self, value)

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        return SerializerSnapshot(class_id=self.class_id, version=self.version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """
        Return whether this serializer can restore state that was written with ``old``.

        :raises IncompatibleCheckpointError: if a newer version of this class wrote the snapshot.
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
