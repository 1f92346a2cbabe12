"""UUIDs as their sixteen bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any
from uuid import UUID

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.compatibility import AS_IS
from airflow_provider_statecheck.state.serializers.owning import Plain
from airflow_provider_statecheck.state.serializers.serializer import Compatibility


class UuidSerializer(AbstractSerializer[UUID]):
    """UUIDs as a column of sixteen bytes each."""

    class_id = "uuid"

    @property
    def arrow_type(self) -> Any:
        """Return the type of sixteen bytes."""
        import pyarrow as pa

        return pa.binary(16)

    def to_arrow(self, values: Sequence[UUID | None]) -> Any:
        """
        Return an Arrow array of values, null where there is ``None``.

        :raises UnsupportedStateError: for a value of another type.
        """
        import pyarrow as pa

        for kind in {*map(type, values)} - {UUID, NoneType}:
            raise UnsupportedStateError(f"Expected uuid.UUID, found {kind.__module__}.{kind.__qualname__}; convert it.")
        return pa.array([None if value is None else value.bytes for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[UUID | None]:
        """Return the values of an array."""
        return [None if value is None else UUID(bytes=value) for value in array.to_pylist()]

    plain = Plain(UUID)

    def own(self, value: Any) -> UUID:
        """Return a UUID."""
        return value if type(value) is UUID else super().own(value)

    def config(self) -> dict[str, Any]:
        """Return nothing, as all are alike."""
        return {}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        return AS_IS
