"""What a backend knows about one keyed state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.descriptors import StateDescriptor, StateKind
from airflow_provider_statecheck.state.keyed.list_cell_serializer import ListCellSerializer
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.freezing import Freezing, freezing_of
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer
from airflow_provider_statecheck.state.serializers.ttl_serializer import TtlSerializer

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.ttl import StateTtlConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredState:
    """A keyed state that a descriptor asked for: all that is needed to make, read and write its table."""

    name: str
    kind: StateKind
    serializer: TypeSerializer[Any]
    """Of a value, of an element of a list, or of a value of a map; without what its time to live adds."""
    key_serializer: TypeSerializer[Any] | None = None
    """Of the keys of a map."""
    ttl: StateTtlConfig | None = None

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any]) -> RegisteredState:
        """Return what a descriptor says."""
        return cls(
            name=descriptor.name,
            kind=descriptor.kind,
            serializer=descriptor.serializer,
            key_serializer=descriptor.key_serializer if descriptor.kind is StateKind.MAP else None,
            ttl=descriptor.ttl,
        )

    @property
    def title(self) -> str:
        """Return what it is called in errors."""
        return f"the {self.kind} state {self.name!r}"

    @property
    def is_map(self) -> bool:
        """Tell whether its table is a ``MapTable``."""
        return self.kind is StateKind.MAP

    @property
    def cell_serializer(self) -> TypeSerializer[Any]:
        """
        Return the serializer of what a table holds.

        That is a value, a list of elements or a map's value; with a time to live, values and elements are ``TtlValue``.
        """
        element = self.serializer if self.ttl is None else TtlSerializer(self.serializer)
        return ListCellSerializer(element) if self.kind is StateKind.LIST else element

    @property
    def cells(self) -> Freezing:
        """Return how the cells of a table become columns and come back; a table holds them as they are kept."""
        return freezing_of(self.cell_serializer)

    def schema(self) -> StateSchema:
        """Return what later versions are compared with."""
        return StateSchema(
            name=self.name,
            kind=self.kind,
            key=None if self.key_serializer is None else self.key_serializer.snapshot(),
            value=self.serializer.snapshot(),
            ttl=self.ttl is not None,
            ttl_ms=None if self.ttl is None else self.ttl.ttl_ms,
        )
