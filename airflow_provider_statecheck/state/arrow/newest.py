"""The newest rows of many keys, out of all runs of a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, NAMESPACE, single
from airflow_provider_statecheck.state.arrow.lookup import Found, find_rows
from airflow_provider_statecheck.state.arrow.merging import merge_tables
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

_OF_KEY = "of_key"


def newest_of_void(runs: StateRuns, keys: KeyBatch) -> Iterator[Found]:
    """Return the rows of single values that keys have without a namespace, without those that are gone."""
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(len(keys))
    for run in runs.all:
        missing = np.ones(len(numbers), bool)
        for found in find_rows(runs.layout, run, keys):
            some = _of_void(found)
            missing[some.keys] = False
            yield _without_gone(Found(some.rows, numbers[some.keys]))
        numbers = numbers[missing]
        if not len(numbers):
            return
        if not missing.all():
            keys = _taken(keys, pa.array(np.flatnonzero(missing)))


def newest_of_all(runs: StateRuns, keys: KeyBatch) -> Iterator[Found]:
    """Return the rows that keys have in any namespace and under any user key, without those that are gone."""
    import pyarrow as pa

    found = [some for run in runs.all for some in find_rows(runs.layout, run, keys)]
    if not found:
        return
    deleted = any(DELETED in some.rows.schema.names for some in found)
    tables = [
        runs.layout.conform(some.rows, namespace=True, deleted=deleted).append_column(_OF_KEY, pa.array(some.keys))
        for some in found
    ]
    merged = merge_tables(tables)
    yield _without_gone(Found(merged.drop_columns([_OF_KEY]), single(merged.column(_OF_KEY)).to_numpy()))


def _of_void(found: Found) -> Found:
    import pyarrow.compute as pc

    if NAMESPACE not in found.rows.schema.names:
        return found
    chosen = single(pc.equal(found.rows.column(NAMESPACE), VOID_NAMESPACE))
    return _filtered(found, chosen)


def _without_gone(found: Found) -> Found:
    import pyarrow.compute as pc

    if DELETED not in found.rows.schema.names:
        return found
    return _filtered(found, single(pc.invert(found.rows.column(DELETED))))


def _filtered(found: Found, chosen: Any) -> Found:
    return Found(found.rows.filter(chosen), found.keys[chosen.to_numpy(zero_copy_only=False)])


def _taken(keys: KeyBatch, rows: Any) -> KeyBatch:
    return KeyBatch(keys.key_groups.take(rows), tuple(column.take(rows) for column in keys.columns))
