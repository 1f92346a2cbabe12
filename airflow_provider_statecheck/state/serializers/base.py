"""What all serializers of this package have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from airflow_provider_statecheck.state.serializers.compatibility import incompatible, require_known_version
from airflow_provider_statecheck.state.serializers.description import describe
from airflow_provider_statecheck.state.serializers.owning import own_through_arrow
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, SerializerSnapshot

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
