"""Rows that wait for their commit on an object store."""

from __future__ import annotations

from airflow_provider_statecheck.spark.sinks.sink import lineage_of
from airflow_provider_statecheck.spark.sinks.table_sinks import SqlSink
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt


def test_rows_wait_on_an_object_store_and_go_with_their_commit(object_store, sqlite):
    object_store.faults.clear()
    options = object_store.storage_options
    staging = f"s3://{object_store.make_bucket()}/staging"

    def make() -> SqlSink:
        return SqlSink(sqlite.url, "balances", staging=staging, storage_options=options)

    first = SinkAttempt(make(), 1).open()
    first.add(1, 1, 2)
    open_commit, _ = first.write(3), first.write(4)
    second = SinkAttempt(make(), 2, restored=2, restored_epoch=1).open()
    second.commit(2, open_commit)
    second.finish()
    assert sqlite.seen == [1, 2, 3]
    lineage = lineage_of(second.context.job_id, second.context.uid)
    assert TargetFiles.open(staging, lineage, options).list_files() == {}
