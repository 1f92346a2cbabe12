"""A table on an object store: tasks reach it with what the catalog's properties say, and nobody sees that."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks import iceberg_sink
from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from airflow_provider_statecheck.spark.sources.iceberg_source import IcebergSource
from tests.object_store import KEY, REGION, SECRET, Fault
from tests.unit.spark.sinks.iceberg.tables import SCHEMA, TABLE, Attempt, rows_of


@pytest.fixture
def properties(object_store, tmp_path):
    object_store.faults.clear()
    found = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{object_store.make_bucket()}/warehouse",
        "s3.endpoint": object_store.endpoint_url,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    catalog = load_catalog(None, **found)
    catalog.create_namespace("sales")
    catalog.create_table(TABLE, SCHEMA)
    catalog.close()
    return found


def opened(properties, tmp_path, epoch=1):
    sink = IcebergSink(TABLE, properties=properties)
    sink.open(Attempt(tmp_path, epoch).context)
    return sink


def written(sink, *keys):
    context = SinkTaskContext(subtask=0, epoch=1, task_id="task", schema=SCHEMA)
    writer = pickle.loads(pickle.dumps(sink)).writer(context)
    writer.write(rows_of(*keys))
    return json.loads(json.dumps(writer.prepare_commit()))


def read(properties):
    spark: Any = None  # planning needs none
    enumerator = IcebergSource(TABLE, properties=properties).open(spark)
    increment: Any = enumerator.next_increment()
    reader: Any = enumerator._reader
    files = reader.file_reader(increment.splits, reader.arrow_schema())
    batches = files.read(iter([pa.record_batch([pa.array([0])], names=["id"])]))
    return sorted(key for batch in batches for key in batch.column("key").to_pylist())


def test_what_is_committed_is_read(properties, tmp_path):
    sink = opened(properties, tmp_path)
    first = written(sink, 1, 2)
    sink.commit(1, first)
    sink.commit(1, first)
    sink.commit(2, written(sink, 3))
    sink.close(succeeded=True)
    assert read(properties) == [1, 2, 3]


def test_no_credentials_are_in_what_is_handed_over_or_shown(properties, tmp_path):
    sink = opened(properties, tmp_path)
    shown = repr((written(sink, 1), sink.__dict__, sink._target))
    assert KEY not in shown
    assert SECRET not in shown


def test_failures_tell_no_credentials(object_store, properties, tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg_sink, "_LONGEST_PAUSE_SECONDS", 0)
    sink = opened(properties, tmp_path)
    committables = written(sink, 1)
    object_store.faults.inject(Fault.DENIED, method="PUT|POST", times=1000)
    failures: list[tuple[Any, type[StateCheckError]]] = [
        (lambda: written(sink, 2), StorageError),
        (lambda: sink.commit(1, committables), StorageError),
    ]
    for act, kind in failures:
        with pytest.raises(kind) as failure:
            act()
        assert SECRET not in repr(failure.value)
        assert KEY not in repr(failure.value)
    object_store.faults.clear()
    sink.commit(1, committables)
    assert read(properties) == [1]
