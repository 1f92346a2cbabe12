"""Serializers of datetimes, enum members, UUIDs, lists, tuples, sets and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import Enum, Flag
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa
from airflow_provider_statecheck.state.arrow.layout import order_codes, order_columns
from airflow_provider_statecheck.state.serializers.nested_columns import (
    entries_of_array,
    list_array,
    nulls_of,
    offsets_of,
    offsets_of_array,
    require_no_none,
    resolve_part,
    with_elements,
    with_entries,
    with_nulls,
)
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Own,
    Plain,
    TypeSerializer,
    after_migration,
    decode_snapshot,
    incompatible,
    kept_distinct,
    migrated,
    require_class,
    serializer_from_now_on,
    whole,
)

_MICROSECOND = timedelta(microseconds=1)
_SINGLETON_ZONES = (None, UTC)
"""Time zones that a checkpoint restores as the same object."""


class DatetimeSerializer(TypeSerializer[datetime]):
    """
    Serializer of ``datetime`` as a struct of local time, time zone (key, fixed offset or null) and fold.

    The struct preserves the time zone. For instants only, declare ``pyarrow.timestamp("us", tz="UTC")``.
    """

    class_id = "datetime"

    @property
    def arrow_type(self) -> Any:
        return pa.struct([("local", pa.timestamp("us")), ("zone", pa.string()), ("fold", pa.bool_())])

    def to_arrow(self, values: Sequence[datetime | None]) -> Any:
        require_class(values, datetime, "datetime.datetime")
        clock = [v if v is None or v.tzinfo is None else v.replace(tzinfo=None) for v in values]
        local = pa.array(clock, pa.timestamp("us"))
        zone = pa.array([None if v is None or v.tzinfo is None else _name_of(v.tzinfo) for v in values], pa.string())
        fold = pa.array([None if v is None else v.fold == 1 for v in values], pa.bool_())
        return pa.StructArray.from_arrays([local, zone, fold], fields=list(self.arrow_type), mask=local.is_null())

    def from_arrow(self, array: Any) -> list[datetime | None]:
        clock, zones, folds = array.flatten()
        rows = zip(clock.to_numpy(zero_copy_only=False).tolist(), zones.to_pylist(), folds.to_pylist(), strict=True)
        return [
            local if local is None or (zone is None and not fold) else local.replace(tzinfo=zone_of(zone), fold=fold)
            for local, zone, fold in rows
        ]

    def own(self, value: Any) -> datetime:
        return value if type(value) is datetime and value.tzinfo in _SINGLETON_ZONES else super().own(value)

    def require_valid_or_null(self, array: Any, place: str) -> None:
        local, zones, fold = array.drop_null().flatten()
        if local.null_count or fold.null_count:
            raise UnsupportedStateError(
                f"Expected {place} to have a local time and a fold, found "
                f"{counted(max(local.null_count, fold.null_count), 'null')}; set them."
            )
        for name in zones.unique().drop_null().to_pylist():
            try:
                zone_of(name)
            except (ValueError, LookupError, OSError) as error:
                raise UnsupportedStateError(
                    f"Expected {place} to have a time zone such as 'Europe/Berlin' or '+02:00', found {name!r:.100}; "
                    "correct it."
                ) from error


@lru_cache(maxsize=1024)
def _name_of(zone: tzinfo) -> str:
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    if type(zone) is timezone:
        return _offset_name(zone.utcoffset(None))
    kind = type(zone)
    raise UnsupportedStateError(
        f"Expected the time zone of a datetime to be a datetime.timezone or a zoneinfo.ZoneInfo with a key, found "
        f"{kind.__module__}.{kind.__qualname__}; convert it with astimezone()."
    )


def _offset_name(offset: timedelta) -> str:
    sign = "-" if offset < timedelta(0) else "+"
    minutes, rest = divmod(abs(offset), timedelta(minutes=1))
    seconds = f":{rest // timedelta(seconds=1):02}" if rest else ""
    fraction = f".{rest // _MICROSECOND % 1_000_000:06}" if rest % timedelta(seconds=1) else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}{seconds}{fraction}"


@lru_cache(maxsize=1024)
def zone_of(name: str | None) -> tzinfo | None:
    """
    Return the time zone of its key or fixed offset.

    Raises ``LookupError``, ``ValueError`` or ``OSError`` if there is none.
    """
    if name is None or name == "+00:00":
        return None if name is None else UTC
    if name[0] not in "+-":
        return ZoneInfo(name)
    return datetime.strptime(name, "%z").tzinfo


class EnumNames(TypeSerializer[Any]):
    """
    Serializer of enum members as their names, for readers without the enum class.

    :param names: All names, including aliases.
    :param aliases: The name of the member of each alias.
    """

    class_id = "enum"

    def __init__(self, names: Sequence[str], aliases: Mapping[str, str] | None = None) -> None:
        self._names = tuple(names)
        self._aliases = dict(aliases or {})

    @property
    def arrow_type(self) -> Any:
        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        for value in {*values} - {*self._names, None}:
            self._reject(value)
        return pa.array(map(self._canonical, values), self.arrow_type)

    def require_valid_or_null(self, array: Any, place: str) -> None:
        # State has the names of members, never an alias.
        members = [name for name in self._names if name not in self._aliases]
        unknown = [name for name in array.unique().to_pylist() if name not in (None, *members)]
        if unknown:
            raise UnsupportedStateError(
                f"Expected {place} to be one of {', '.join(members)}, found {unknown[0]!r}; correct it."
            )

    def config(self) -> dict[str, Any]:
        return {"names": list(self._names)} | ({"aliases": self._aliases} if self._aliases else {})

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        missing = [name for name in config["names"] if name not in self._names]
        if missing:
            return incompatible(
                f"has no {' and no '.join(missing)} any more; names may only be added, keep it as another name"
            )
        stored = [name for name in config["names"] if name not in config.get("aliases", ())]
        renamed = {name: self._aliases[name] for name in stored if name in self._aliases}
        if not renamed:
            return AS_IS
        reason = ", ".join(f"{old} becomes {new}" for old, new in renamed.items())
        merges = len({*map(self._canonical, stored)}) < len(stored)
        return after_migration(reason, self._with_canonical_names, merges=merges)

    def _canonical(self, name: Any) -> Any:
        return self._aliases.get(name, name)

    def _with_canonical_names(self, array: Any) -> Any:
        return pa.array(map(self._canonical, array.to_pylist()), self.arrow_type)

    def _reject(self, value: Any) -> None:
        raise UnsupportedStateError(
            f"Expected one of {', '.join(self._names)}, found {type(value).__qualname__} {value!r:.100}."
        )


class EnumSerializer(EnumNames):
    """
    Serializer of enum members by name; their values and order may change between versions.

    :raises UnsupportedStateError: if the class is a ``Flag``, because combined members have no names.
    """

    def __init__(self, enum: type[Enum]) -> None:
        if issubclass(enum, Flag):
            raise UnsupportedStateError(
                f"Expected an enumeration without combined members, found the flags {enum.__qualname__}; declare int "
                f"and keep their values."
            )
        members = enum.__members__
        super().__init__(tuple(members), {name: each.name for name, each in members.items() if each.name != name})
        self._enum = enum

    def to_arrow(self, values: Sequence[Enum | None]) -> Any:
        for kind in {*map(type, values)} - {self._enum, NoneType}:
            self._reject(next(value for value in values if type(value) is kind))
        return pa.array([None if value is None else value._name_ for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        members = self._enum.__members__
        return [None if name is None else members[name] for name in array.to_pylist()]

    @property
    def plain(self) -> Plain:
        return Plain(self._enum)

    def own(self, value: Any) -> Any:
        return value if type(value) is self._enum else super().own(value)


class UuidSerializer(TypeSerializer[UUID]):
    """Serializer of UUIDs as 16 bytes each."""

    class_id = "uuid"

    @property
    def arrow_type(self) -> Any:
        return pa.binary(16)

    def to_arrow(self, values: Sequence[UUID | None]) -> Any:
        require_class(values, UUID, "uuid.UUID")
        return pa.array([None if value is None else value.bytes for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[UUID | None]:
        return [None if value is None else UUID(bytes=value) for value in array.to_pylist()]

    plain = Plain(UUID)

    def own(self, value: Any) -> UUID:
        return value if type(value) is UUID else super().own(value)


COLLECTIONS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
"""Supported collection classes by the name that snapshots store."""


class CollectionSerializer(TypeSerializer[Any]):
    """
    Serializer of collections whose elements have one type.

    :param collection: A class of :data:`COLLECTIONS`; another class is incompatible with stored state.
    """

    class_id = "collection"

    def __init__(self, collection: type, element: TypeSerializer[Any]) -> None:
        self.collection = collection
        self.element = element

    @property
    def arrow_type(self) -> Any:
        return pa.list_(self.element.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        require_class(values, self.collection, f"a {self.collection.__name__}")
        elements = self.element.to_arrow(list(chain.from_iterable(value for value in values if value is not None)))
        require_no_none(self.element, elements, f"each element of a {self.collection.__name__}")
        offsets = offsets_of(values)
        return list_array(offsets, self._in_order(offsets, elements), nulls_of(values))

    def from_arrow(self, array: Any) -> list[Any]:
        elements = self.element.from_arrow(array.flatten())
        lists = [elements[start:end] for start, end in pairwise(offsets_of_array(array).to_pylist())]
        return with_nulls(array, lists if self.collection is list else list(map(self.collection, lists)))

    @property
    def is_immutable(self) -> bool:
        return self.collection in (tuple, frozenset) and self.element.is_immutable

    @cached_property
    def copy(self) -> Callable[[Any], Any]:
        kind: Any = self.collection
        if self.element.is_immutable:
            return super().copy if self.is_immutable else kind
        return lambda value: kind(map(self.element.copy, value))

    @cached_property
    def own(self) -> Own:
        plain = self.element.plain
        if plain is None:
            return self._validated
        kind: Any = self.collection
        own, all_fit, is_shared = self._validated, plain.all_fit, self.is_immutable

        def owned(value: Any) -> Any:
            if type(value) is not kind or not all_fit(value):
                return own(value)
            return value if is_shared else kind(value)

        return owned

    def require_valid_or_null(self, array: Any, place: str) -> None:
        self.element.require_valid(array.flatten(), f"each element of {place}")

    def config(self) -> dict[str, Any]:
        return {"collection": self.collection.__name__, "element": encode(self.element.snapshot())}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        name = self.collection.__name__
        if config["collection"] != name:
            return incompatible(f"was a {config['collection']}, is now a {name}")
        element = resolve_part(self.element, decode_snapshot(config["element"]))
        if self.collection in (set, frozenset):
            element = kept_distinct(element, f"elements of a {name}")
        return whole(
            [(f"element of the {name}", element)],
            lambda: CollectionSerializer(self.collection, serializer_from_now_on(element, self.element)),
            lambda array: self._with_migrated_elements(array, element),
        )

    def _with_migrated_elements(self, array: Any, element: Compatibility) -> Any:
        return with_elements(array, self._in_order(offsets_of_array(array), migrated(element, array.flatten())))

    def _in_order(self, offsets: Any, elements: Any) -> Any:
        """Return the elements of lists, in an order that depends only on the elements if the collection has none."""
        if self.collection not in (set, frozenset):
            return elements
        # Equal sets need equal lists: the key of a map is searched for, and a difference is a change.
        return elements.take(pa.array(np.argsort(_codes_in_lists(offsets, elements), kind="stable")))

    def _validated(self, value: Any) -> Any:
        kind: Any = self.collection
        if type(value) is kind:
            try:
                return kind(map(self.element.own, value))
            except UnsupportedStateError:
                pass  # The conversion to Arrow raises the detailed error.
        return super().own(value)


def _codes_in_lists(offsets: Any, elements: Any) -> Any:
    """Return one integer per element with the order and equality of pairs of a list and an element."""
    lengths = np.diff(offsets.to_numpy())
    lists = pa.array(np.repeat(np.arange(len(lengths)), lengths))
    return order_codes([lists, *order_columns(elements, nullable=True)])


class DictSerializer(TypeSerializer[dict[Any, Any]]):
    """
    Serializer of dictionaries; it preserves the order of entries.

    :param key: The serializer of the keys, which are never ``None``.
    """

    class_id = "dict"
    is_immutable = False

    def __init__(self, key: TypeSerializer[Any], value: TypeSerializer[Any]) -> None:
        self.key = key
        self.value = value

    @property
    def arrow_type(self) -> Any:
        return pa.map_(self.key.arrow_type, self.value.arrow_type)

    def to_arrow(self, values: Sequence[dict[Any, Any] | None]) -> Any:
        require_class(values, dict, "a dict")
        present = [value for value in values if value is not None]
        keys = self.key.to_arrow(list(chain.from_iterable(present)))
        items = self.value.to_arrow(list(chain.from_iterable(value.values() for value in present)))
        if keys.null_count:
            raise UnsupportedStateError("Expected no key of a dict to be None, found None; leave the entry out.")
        require_no_none(self.value, items, "each value of a dict")
        return pa.MapArray.from_arrays(offsets_of(values), keys, items, mask=nulls_of(values))

    def from_arrow(self, array: Any) -> list[dict[Any, Any] | None]:
        keys, values = entries_of_array(array)
        pairs = list(zip(self.key.from_arrow(keys), self.value.from_arrow(values), strict=True))
        bounds = pairwise(offsets_of_array(array).to_pylist())
        return with_nulls(array, [dict(pairs[start:end]) for start, end in bounds])

    @cached_property
    def copy(self) -> Callable[[Any], Any]:
        if self.value.is_immutable:
            return dict
        return lambda value: {key: self.value.copy(item) for key, item in value.items()}

    def own(self, value: Any) -> Any:
        if type(value) is dict and None not in value:
            try:
                return dict(zip(map(self.key.own, value), map(self.value.own, value.values()), strict=True))
            except UnsupportedStateError:
                pass  # The conversion to Arrow raises the detailed error.
        return super().own(value)

    def require_valid_or_null(self, array: Any, place: str) -> None:
        keys, values = entries_of_array(array)
        self.key.require_valid(keys, f"each key of {place}")
        self.value.require_valid(values, f"each value of {place}")
        codes = _codes_in_lists(offsets_of_array(array), keys)
        surplus = len(codes) - len(np.unique(codes))
        if surplus:
            raise UnsupportedStateError(
                f"Expected each key of {place} to be in it once, found "
                f"{counted(surplus, 'entry')} too many; remove them."
            )

    def config(self) -> dict[str, Any]:
        return {"key": encode(self.key.snapshot()), "value": encode(self.value.snapshot())}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        key = kept_distinct(resolve_part(self.key, decode_snapshot(config["key"])), "keys of a dict")
        value = resolve_part(self.value, decode_snapshot(config["value"]))
        return whole(
            [("key of the dict", key), ("value of the dict", value)],
            lambda: DictSerializer(serializer_from_now_on(key, self.key), serializer_from_now_on(value, self.value)),
            lambda array: _with_migrated_entries(array, key, value),
        )


def _with_migrated_entries(array: Any, key: Compatibility, value: Compatibility) -> Any:
    keys, values = entries_of_array(array)
    return with_entries(array, migrated(key, keys), migrated(value, values))
