"""A table on an object store: tasks reach it with what the catalog's properties say, and nobody sees that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks.commits import committer
from airflow_provider_statecheck.spark.sources.iceberg_source import IcebergSource
from airflow_provider_statecheck.spark.tables.schemas import read_tasks
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.object_store import KEY, REGION, SECRET, Fault
from tests.unit.spark.sinks.iceberg.tables import TABLE, Attempt


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


def read(properties):
    spark: Any = None  # planning needs none
    enumerator = IcebergSource(TABLE, properties=properties).open(spark)
    increment: Any = enumerator.next_increment()
    reader: Any = enumerator._reader
    files = reader.file_reader(increment.splits, reader.arrow_schema())
    batches = read_tasks(files, [pa.record_batch([pa.array([0])], names=["id"])])
    return sorted(key for batch in batches for key in batch.column("key").to_pylist())


@pytest.mark.parametrize("upsert_by", [[], ["key"]])
def test_committed_rows_are_read_and_no_credentials_are_shown(properties, tmp_path, upsert_by):
    attempt = Attempt(tmp_path, 1, properties=properties, upsert_by=upsert_by).open()
    first = attempt.write(1, 2)
    attempt.commit(1, first)
    attempt.commit(1, first)
    attempt.commit(2, attempt.write(3))
    attempt.finish()
    assert read(properties) == [1, 2, 3]
    shown = repr((first, attempt.sink.__dict__))
    assert KEY not in shown
    assert SECRET not in shown


def test_failures_tell_no_credentials(object_store, properties, tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "pause", lambda number: None)
    attempt = Attempt(tmp_path, 1, properties=properties).open()
    committables = attempt.write(1)
    object_store.faults.inject(Fault.DENIED, method="PUT|POST", times=1000)
    failures: list[tuple[Any, type[StateCheckError]]] = [
        (lambda: attempt.write(2), StorageError),
        (lambda: attempt.commit(1, committables), StorageError),
    ]
    for act, kind in failures:
        with pytest.raises(kind) as failure:
            act()
        assert SECRET not in repr(failure.value)
        assert KEY not in repr(failure.value)
    object_store.faults.clear()
    attempt.commit(1, committables)
    assert read(properties) == [1]
