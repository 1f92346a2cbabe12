"""Members of an enumeration by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, Flag
from types import NoneType
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.compatibility import AS_IS, incompatible
from airflow_provider_statecheck.state.serializers.owning import Plain
from airflow_provider_statecheck.state.serializers.serializer import Compatibility


class EnumNames(AbstractSerializer[Any]):
    """
    The names of an enumeration whose class is not at hand, as text.

    :param names: All of them, with those that are other names of a member.
    """

    class_id = "enum"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    @property
    def arrow_type(self) -> Any:
        """Return the type of texts."""
        import pyarrow as pa

        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """
        Return an Arrow array of names, null where there is ``None``.

        :raises UnsupportedStateError: for what is none of the names.
        """
        import pyarrow as pa

        for value in {*values} - {*self._names, None}:
            self._refuse(value)
        return pa.array(values, self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the names of an array."""
        found: list[Any] = array.to_pylist()
        return found

    def config(self) -> dict[str, Any]:
        """Return the names."""
        return {"names": list(self._names)}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        missing = [name for name in config["names"] if name not in self._names]
        if not missing:
            return AS_IS
        return incompatible(
            f"has no {' and no '.join(missing)} any more; names may only be added, keep it as another name"
        )

    def _refuse(self, value: Any) -> None:
        raise UnsupportedStateError(
            f"Expected one of {', '.join(self._names)}, found {type(value).__qualname__} {value!r:.100}."
        )


class EnumSerializer(EnumNames):
    """
    Members of an enumeration by their names; their values, and their order, may change at any time.

    :param enum: The class.
    :raises UnsupportedStateError: for flags, whose members have no names when they are combined.
    """

    def __init__(self, enum: type[Enum]) -> None:
        if issubclass(enum, Flag):
            raise UnsupportedStateError(
                f"Expected an enumeration without combined members, found the flags {enum.__qualname__}; declare int "
                f"and keep their values."
            )
        super().__init__(tuple(enum.__members__))
        self._enum = enum

    def to_arrow(self, values: Sequence[Enum | None]) -> Any:
        """
        Return an Arrow array of names, null where there is ``None``.

        :raises UnsupportedStateError: for what is no member.
        """
        import pyarrow as pa

        for kind in {*map(type, values)} - {self._enum, NoneType}:
            self._refuse(next(value for value in values if type(value) is kind))
        return pa.array([None if value is None else value._name_ for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the members that an array names."""
        members = self._enum.__members__
        return [None if name is None else members[name] for name in array.to_pylist()]

    @property
    def plain(self) -> Plain:
        """Return that members are known to fit."""
        return Plain(self._enum)

    def own(self, value: Any) -> Any:
        """Return a member of the enumeration."""
        return value if type(value) is self._enum else super().own(value)

    @property
    def _identity(self) -> Any:
        return self._enum
