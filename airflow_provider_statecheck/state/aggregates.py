"""
Declared aggregates of the state of an operator, and their continuation by a later declaration.

The value of an aggregate does not tell what it was computed from. A checkpoint therefore names function and expression
of each, and a later declaration continues only those that have seen the earlier input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.serializers.nested_columns import OptionalSerializer
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, decode_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSchema:
    """One declared aggregate."""

    name: str
    """Name of its field in the state and of its output column."""
    is_nullable: bool
    """
    Whether the result can be null. In state of a release that recorded no function, this tells counts from others.
    """
    function: str | None = None
    """Function that computes a partial result; ``None`` in state of a release that recorded no function."""
    combine: str | None = None
    """Function that combines partial results."""
    expression: str | None = None
    """Its argument as written."""
    analyzed: str | None = None
    """Its argument as Spark analyzes it; ``None`` if unknown."""
    of_results: bool = False
    """Whether it aggregates the results of another aggregate, so that its state is not that of single rows."""
    aliases: tuple[str, ...] = ()
    """Former names."""

    @property
    def text(self) -> str:
        """The aggregate for messages."""
        if self.function is None:
            return f"{self.name}, {'not a count' if self.is_nullable else 'a count'}"
        return f"{self.name}={self.function}({self.expression}){' of results' if self.of_results else ''}"

    def is_continued_by(self, later: AggregateSchema) -> bool:
        """Return whether another aggregate computes the same as this one, as far as that is known."""
        if self.function is None:
            return self.is_nullable == later.is_nullable
        # The analyzed text may differ between versions of Spark, and with its time zone.
        is_analyzed_alike = self.analyzed is not None and self.analyzed == later.analyzed
        is_same_argument = self.expression == later.expression or is_analyzed_alike
        mine, other = ((each.function, each.combine, each.of_results) for each in (self, later))
        return is_same_argument and mine == other


def unrecorded(value: SerializerSnapshot) -> tuple[AggregateSchema, ...]:
    """
    Return what is known of aggregates from the type of their state, for a release that recorded no more.

    :param value: Type of the record of all aggregates of a key.
    """
    fields = value.config["fields"]
    return tuple(AggregateSchema(name=each["name"], is_nullable=_is_optional(each["type"])) for each in fields)


def continued(
    found: Sequence[AggregateSchema], declared: Sequence[AggregateSchema], operator: str
) -> tuple[AggregateSchema, ...]:
    """
    Return the declared aggregates with the former names under which the restored state has them.

    An aggregate can get another name, and the state of an aggregate that is no longer declared is dropped.

    :param found: The aggregates of the restored state.
    :param operator: Operator name for the error.
    :raises StateMigrationError: if the state does not have a declared aggregate, or has another one under its name.
    """
    names = {each.name for each in declared}
    origins = [_origin(found, each, names) for each in declared]
    missing = [each for each, origin in zip(declared, origins, strict=True) if origin is None]
    if missing:
        raise StateMigrationError(
            f"Expected aggregates of the operator {operator!r} that its state has for all earlier input, found "
            f"{_texts(missing)}; the state has {_texts(found)}. Declare the aggregates as they were. To aggregate all "
            "input again, use another job=, or start this one over. To aggregate only later input, set another uid= "
            "of the aggregates, and allow_non_restored_state=True to drop the state under the old uid.",
            state=missing[0].name,
        )
    return tuple(_with_aliases(each, origin) for each, origin in zip(declared, origins, strict=True) if origin)


def _origin(
    found: Sequence[AggregateSchema], declared: AggregateSchema, names: Collection[str]
) -> AggregateSchema | None:
    by_name = {each.name: each for each in found}
    # A name that is still in use denotes its own aggregate.
    renamed = [each for each in found if each.name not in names and each.function is not None]
    candidates = [by_name[declared.name]] if declared.name in by_name else renamed
    return next((each for each in candidates if each.is_continued_by(declared)), None)


def _with_aliases(declared: AggregateSchema, origin: AggregateSchema) -> AggregateSchema:
    # Subtasks that have not run since an earlier change still have rows with earlier names.
    former = dict.fromkeys((origin.name, *origin.aliases))
    return replace(declared, aliases=tuple(name for name in former if name != declared.name))


def _texts(aggregates: Iterable[AggregateSchema]) -> str:
    return ", ".join(each.text for each in aggregates) or "none"


def _is_optional(encoded: Mapping[str, Any]) -> bool:
    return decode_snapshot(encoded).class_id == OptionalSerializer.class_id
