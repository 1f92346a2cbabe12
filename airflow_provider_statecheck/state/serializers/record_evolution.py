"""Which changes to the fields of a record its state survives, and how its columns are converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.serializers.compatibility import (
    AS_IS,
    after_migration,
    incompatible,
    migrated,
    reconfigured,
    serializer_from_now_on,
    whole,
)
from airflow_provider_statecheck.state.serializers.lists import nulls_of_array
from airflow_provider_statecheck.state.serializers.optional import OptionalSerializer, resolve_part
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, Outcome
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.serializers.record_serializer import RecordField, RecordSerializer


@dataclass(frozen=True, slots=True)
class _Match:
    field: RecordField
    source: int | None
    """The place of its old column; ``None`` for a field that was added."""
    verdict: Compatibility


def resolve_record(new: RecordSerializer, old_fields: Sequence[Mapping[str, Any]]) -> Compatibility:
    """
    Compare the fields of a record with those that it had.

    :param old_fields: As the config of the record's snapshot has them.
    """
    matches = [_matched(field, new, old_fields) for field in new.fields]
    placed = [(f"field {match.field.name}", match.verdict) for match in matches]
    placed.append(("", _resolve_dropped(matches, old_fields)))
    placed.append(("", _resolve_order(new, matches)))
    return whole(placed, lambda: _rearranged(new, matches), lambda array: _converted(array, new, matches))


def _matched(field: RecordField, new: RecordSerializer, old_fields: Sequence[Mapping[str, Any]]) -> _Match:
    source = _source(field, new, [old["name"] for old in old_fields])
    if source is None:
        return _Match(field, None, _resolve_added(field))
    old = old_fields[source]
    verdict = resolve_part(field.serializer, decode_snapshot(old["type"]), _default_of(field))
    return _Match(field, source, _renamed(verdict, old["name"], field.name))


def _source(field: RecordField, new: RecordSerializer, old_names: Sequence[str]) -> int | None:
    if field.name in old_names:
        return old_names.index(field.name)
    # A name that another field has today is that field's.
    aliases = [alias for alias in field.aliases if alias in old_names and alias not in new.names]
    return old_names.index(aliases[0]) if aliases else None


def _renamed(verdict: Compatibility, old: str, new: str) -> Compatibility:
    if old == new or verdict.outcome is Outcome.INCOMPATIBLE:
        return verdict
    reason = "; ".join(filter(None, (f"renamed from {old}", verdict.reason)))
    return after_migration(reason, lambda array: migrated(verdict, array), merges=verdict.merges)


def _resolve_added(field: RecordField) -> Compatibility:
    if field.default is None and not isinstance(field.serializer, OptionalSerializer):
        return incompatible("is new and has no default; give it one, or an alias if it was renamed")
    return after_migration("is new", lambda array: array)


def _resolve_dropped(matches: Sequence[_Match], old_fields: Sequence[Mapping[str, Any]]) -> Compatibility:
    used = {match.source for match in matches}
    dropped = [old["name"] for i, old in enumerate(old_fields) if i not in used]
    return after_migration(f"dropped {', '.join(dropped)}", lambda array: array, merges=True) if dropped else AS_IS


def _resolve_order(new: RecordSerializer, matches: Sequence[_Match]) -> Compatibility:
    sources = [match.source for match in matches if match.source is not None]
    if sources == sorted(sources):
        return AS_IS
    return reconfigured("the order of the fields differs; the columns keep theirs", new, lambda array: array)


def _rearranged(new: RecordSerializer, matches: Sequence[_Match]) -> RecordSerializer:
    in_old_order = sorted(matches, key=lambda match: match.source or 0)
    return new.with_fields(
        [
            replace(match.field, serializer=serializer_from_now_on(match.verdict, match.field.serializer))
            for match in in_old_order
        ]
    )


def _converted(array: Any, new: RecordSerializer, matches: Sequence[_Match]) -> Any:
    import pyarrow as pa

    columns = [_column(array, match) for match in matches]
    return pa.StructArray.from_arrays(columns, fields=list(new.arrow_type), mask=nulls_of_array(array))


def _column(array: Any, match: _Match) -> Any:
    if match.source is not None:
        return migrated(match.verdict, array.field(match.source))
    default = _default_of(match.field)
    return _repeated(default() if default else match.field.serializer.to_arrow([None]), len(array))


def _repeated(one: Any, count: int) -> Any:
    import pyarrow as pa

    return one.take(pa.nulls(count, pa.int64()).fill_null(0))


def _default_of(field: RecordField) -> Callable[[], Any] | None:
    make = field.default
    return None if make is None else lambda: field.serializer.to_arrow([make()])
