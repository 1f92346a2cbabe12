"""Parts of a value that may be ``None``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.compatibility import (
    after_migration,
    incompatible,
    migrated,
    reconfigured,
    require_known_version,
)
from airflow_provider_statecheck.state.serializers.owning import own_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
)
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot, encode_snapshot

CLASS_ID = "optional"
_VERSION = 1


class OptionalSerializer:
    """
    Says of a part that it may be ``None``; the column is the same, as every column can hold nulls.

    :param value: The serializer of what is not ``None``.
    """

    def __init__(self, value: TypeSerializer[Any]) -> None:
        self.value = value

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""
        return self.value.arrow_type

    @property
    def is_immutable(self) -> bool:
        """Tell whether values can be shared, as nobody can change them."""
        return is_immutable(self.value)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of values, null where there is ``None``."""
        return self.value.to_arrow(values)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the values of an array; each is new and may be changed."""
        return self.value.from_arrow(array)

    def own(self, value: Any) -> Any:
        """
        Return a value as it comes back from a checkpoint; ``None`` is one too.

        :raises UnsupportedStateError: for a value of another type, naming it.
        """
        return None if value is None else own_of(self.value)(value)

    def copy(self, value: Any) -> Any:
        """Return a value that shares nothing with another that could be changed."""
        return None if value is None else self.value.copy(value)

    def snapshot(self) -> SerializerSnapshot:
        """Return what a later version is compared with."""
        config = {"value": encode_snapshot(self.value.snapshot())}
        return SerializerSnapshot(class_id=CLASS_ID, version=_VERSION, config=config)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether state can go on; that it may now be ``None`` changes nothing in what is written."""
        verdict = self.value.resolve_compatibility(value_of(old))
        if verdict.serializer is None:
            return verdict
        assert verdict.migrate is not None  # noqa: S101 - reconfigured verdicts have one
        return reconfigured(verdict.reason, OptionalSerializer(verdict.serializer), verdict.migrate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalSerializer) and self.value == other.value

    def __hash__(self) -> int:
        return hash((CLASS_ID, self.value))


def is_optional(snapshot: SerializerSnapshot) -> bool:
    """Tell whether values may be ``None``."""
    return snapshot.class_id == CLASS_ID


def value_of(snapshot: SerializerSnapshot) -> SerializerSnapshot:
    """
    Return the snapshot of what is not ``None``.

    :raises IncompatibleCheckpointError: if a newer version wrote it.
    """
    if not is_optional(snapshot):
        return snapshot
    require_known_version(snapshot, _VERSION)
    return decode_snapshot(snapshot.config["value"])


def without_optional(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer of what is not ``None``; whether a whole cell may be ``None`` is for its kind of state to say."""
    return serializer.value if isinstance(serializer, OptionalSerializer) else serializer


def is_immutable(serializer: TypeSerializer[Any]) -> bool:
    """Tell whether values can be shared; of a serializer that does not say, they cannot."""
    return bool(getattr(serializer, "is_immutable", False))


def resolve_part(new: TypeSerializer[Any], old: SerializerSnapshot, default: Any = None) -> Compatibility:
    """
    Compare a part of a value, such as the field of a record.

    :param default: Gives an array of one value to put where there was ``None``, if that is no longer allowed.
    """
    if not is_optional(old) or isinstance(new, OptionalSerializer):
        return new.resolve_compatibility(old)
    verdict = new.resolve_compatibility(value_of(old))
    if default is None and verdict.outcome is not Outcome.INCOMPATIBLE:
        return incompatible("could be None, now it cannot")
    if verdict.outcome is Outcome.INCOMPATIBLE:
        return verdict
    reason = "; ".join(filter(None, (verdict.reason, "the default takes the place of None")))
    return after_migration(reason, lambda array: _filled(migrated(verdict, array), default()), merges=True)


def require_no_none(part: TypeSerializer[Any], array: Any, allowed: int, place: str) -> None:
    """
    Refuse ``None`` in a part that is not optional.

    :param allowed: How many nulls there are because the whole is ``None``.
    :raises UnsupportedStateError: naming the place.
    """
    if array.null_count > allowed and not isinstance(part, OptionalSerializer):
        raise UnsupportedStateError(f"Expected {place} to have a value, found None; declare its type as optional.")


def _filled(array: Any, default: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not array.null_count:
        return array
    both = pa.concat_arrays([array, default])
    places = pa.array(range(len(array)), pa.int64())
    return both.take(pc.if_else(array.is_valid(), places, pa.scalar(len(array), pa.int64())))
