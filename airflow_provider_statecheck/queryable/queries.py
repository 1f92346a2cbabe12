"""
Queries and replies: keys in three forms, the checkpoint to read, and values.

A client may not know the types of a key, so a query carries the keys as the client has them. They are decoded when the
types are known from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    RequestLimitError,
    UnknownKeyOrNamespaceError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.queryable.json_values import JsonForm, decoded_text, json_form_of, scalar_form
from airflow_provider_statecheck.state.descriptors import StateKind, require_queryable_name
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, TypeSerializer, describe

_KEPT_COLUMNS = 256
"""Number of key serializers whose conversions are kept."""


class Absent(Enum):
    """Type of :data:`ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""Value of a key without state, in contrast to a stored ``None``."""


@dataclass(frozen=True, slots=True)
class PythonKeys:
    """
    Keys as Python values.

    :param values: The keys; a key of several columns is a tuple.
    """

    values: tuple[Any, ...]

    def decoded(self, serializer: KeySerializer) -> tuple[Any, ...]:
        """
        Return the keys in normal form.

        :raises InvalidConfigurationError: if a key has no value for a column.
        :raises UnsupportedStateError: if a value does not fit the type of its column.
        """
        return tuple(map(serializer.normalized, self.values))


@dataclass(frozen=True, slots=True)
class JsonKeys:
    """
    Keys as JSON values, or as texts.

    Numbers, booleans and strings are themselves, or texts such as ``42`` and ``true``. Other values are texts: bytes in
    base64, times in ISO 8601.

    :param values: The keys; a key of several columns is a list or a tuple.
    """

    values: tuple[Any, ...]

    def decoded(self, serializer: KeySerializer) -> tuple[Any, ...]:
        """Return the keys in normal form; raises as :meth:`PythonKeys.decoded`."""
        return _keys(serializer, (value if isinstance(value, list | tuple) else (value,) for value in self.values))


@dataclass(frozen=True, slots=True)
class JsonUserKey:
    """
    User key in the JSON form of :mod:`~airflow_provider_statecheck.queryable.json_values`.

    :param value: The key. In the form of ``json_of``, a text does not match another value that is a text in JSON; a
        server that receives JSON cannot distinguish them.
    """

    value: Any

    def decoded(self, serializer: TypeSerializer[Any]) -> Any:
        """
        Return the key as the type of the map's keys.

        :raises UnsupportedStateError: if the value does not fit the type.
        """
        try:
            return _exact_form(serializer).decode(self.value)
        except MalformedMessageError as error:
            raise _unfit_user_key(self.value, serializer, error) from error


@dataclass(frozen=True, slots=True)
class TextUserKey:
    """
    User key as text.

    :param text: The key: a string, or another value in JSON, such as ``42`` or ``{"x": 1}``.
    """

    text: str

    def decoded(self, serializer: TypeSerializer[Any]) -> Any:
        """Return the key as the type of the map's keys; raises as :meth:`JsonUserKey.decoded`."""
        try:
            return decoded_text(_exact_form(serializer), self.text)
        except MalformedMessageError as error:
            raise _unfit_user_key(self.text, serializer, error) from error


class ValueLimit:
    """
    Limit of the size in memory of the values of one reply, which are then converted and encoded.

    :param max_bytes: Largest size; ``None`` for any.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._read_bytes = 0

    def count(self, values: Any) -> None:
        """
        Count values of the reply.

        :param values: Arrow array or table.
        :raises RequestLimitError: if all counted values together are too large.
        """
        if self._max_bytes is None:
            return
        self._read_bytes += values.nbytes
        if self._read_bytes > self._max_bytes:
            raise RequestLimitError(
                f"Expected values of at most {self._max_bytes} bytes in memory, found larger ones; ask for fewer keys "
                "at once, or for one entry of a map with user_key, or read the state with read_state."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """
    Query of a state by its queryable name.

    :raises InvalidConfigurationError: for a name that no state can have.
    """

    job_id: JobId
    name: str
    keys: PythonKeys | JsonKeys
    namespace: str = ""
    user_key: JsonUserKey | TextUserKey | None = None
    """Key of one entry of a map state; ``None`` for whole maps and for other states."""
    as_of: AsOf = LATEST
    max_value_bytes: int | None = None
    """Largest size in memory of all values of the reply; ``None`` for any."""

    def __post_init__(self) -> None:
        require_queryable_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReply:
    """Values of the keys of a query, all from one checkpoint."""

    job_id: JobId
    name: str
    uid: str
    """Uid of the function that registered the state, after the uid of its stage and ``/``."""
    checkpoint_id: int
    pointer: str
    completed_at: datetime | None
    schema: StateSchema
    key: SerializerSnapshot
    """Names and types of the key columns."""
    is_entry: bool = False
    """Whether each value is that of one entry of a map."""
    keys: tuple[Any, ...]
    """Keys in normal form, in the order of the query."""
    values: tuple[Any, ...]
    """Value of each key; :data:`ABSENT` where a key has no state."""

    @property
    def value(self) -> Any:
        """
        The value of the only key.

        :raises UnknownKeyOrNamespaceError: if the key has no state.
        """
        (value,) = self.present().values
        return value

    @property
    def found(self) -> dict[Any, Any]:
        """The values by their keys, without the keys that have no state."""
        return {key: value for key, value in zip(self.keys, self.values, strict=True) if value is not ABSENT}

    def present(self) -> StateReply:
        """
        Return this reply if each key has state.

        :raises UnknownKeyOrNamespaceError: if a key has no state.
        """
        absent = [key for key, value in zip(self.keys, self.values, strict=True) if value is ABSENT]
        if absent:
            raise UnknownKeyOrNamespaceError(
                f"Expected state of {self.name!r} for the key {absent[0]!r} in checkpoint {self.checkpoint_id}, found "
                "none; it was not written, was removed or has expired, or it is in another namespace.",
                checkpoint_id=self.checkpoint_id,
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryableName:
    """A state that is served, or refused because another operator has registered its name."""

    name: str
    uid: str
    """Uid of the function, after the uid of its stage and ``/``."""
    kind: StateKind
    key_columns: tuple[tuple[str, str], ...]
    """Name and type of each key column."""
    user_key_type: str | None = None
    """Type of the keys of a map."""
    value_type: str
    expires: bool
    checkpoint_id: int
    pointer: str
    refused: str = ""
    """Reason of the refusal; empty for a served state."""


def _exact_form(serializer: TypeSerializer[Any]) -> JsonForm:
    form = json_form_of(serializer)

    def decode(data: Any) -> Any:
        value = form.decode(data)
        if _has_more(data, form.encode(value)):
            raise MalformedMessageError("only the fields of the record")
        return value

    return JsonForm(form.encode, decode)


def _has_more(data: Any, known: Any) -> bool:
    """Return whether a JSON value has fields that its decoder has ignored."""
    if isinstance(data, Mapping):
        return data.keys() != known.keys() or any(_has_more(data[name], known[name]) for name in data)
    if isinstance(data, list):
        return any(map(_has_more, data, known.values() if isinstance(known, Mapping) else known))
    return False


def _unfit_user_key(found: Any, serializer: TypeSerializer[Any], error: MalformedMessageError) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected a {describe(serializer.snapshot())} as the key of a map's entry, found {found!r:.100}; write "
        f"{error.expected}."
    )


def _keys(serializer: KeySerializer, keys: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    columns, forms = _columns_of(serializer)

    def key(values: Sequence[Any]) -> Any:
        if len(values) != len(columns):
            names = ", ".join(column["name"] for column in columns)
            raise InvalidConfigurationError(
                f"Expected a key with a value for each of {names}, found {len(values)} values; pass one for each "
                "column."
            )
        parts = tuple(map(_part, columns, forms, values))
        return serializer.normalized(parts[0] if len(parts) == 1 else parts)

    return tuple(map(key, keys))


@lru_cache(maxsize=_KEPT_COLUMNS)
def _columns_of(serializer: KeySerializer) -> tuple[Sequence[Mapping[str, str]], tuple[JsonForm, ...]]:
    return serializer.snapshot().config["fields"], tuple(map(scalar_form, serializer.arrow_types))


def _part(column: Mapping[str, str], form: JsonForm, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return decoded_text(form, value)
    except MalformedMessageError as error:
        raise UnsupportedStateError(
            f"Expected a {column['type']} as the part {column['name']} of a key, found the text {value!r:.100}; write "
            f"{error.expected}."
        ) from error
