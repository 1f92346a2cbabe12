"""Files and rows of one job, whatever they are, stop no maintenance of another one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoveredJob, Recoveries
from airflow_provider_statecheck.operators import maintenance_dag
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.hostile.odd_values import KINDS_OF_FILES, body_of, changed, put, remove, sealed
from tests.messages import ManualClock
from tests.seeds import named_in_failure, new_seeds
from tests.sqlite_rows import new_store
from tests.unit.operators.test_maintenance_tasks import savepoints_of
from tests.unit.written_stage import WrittenStage, local_path

LARGE_STATE = ["an item that is finished"] * 2000
BAD, GOOD = "bad", "good"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenStage:
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path_factory.mktemp("jobs") / "base")))
    for job in (BAD, GOOD):
        _run(stage, job)
    return stage


@pytest.fixture
def stage(written: WrittenStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrittenStage]:
    """Two jobs, whose files and rows are as before after each test."""
    stage = written
    originals = {number: metadata_of(stage, number).read_bytes() for number in (2, 3)}
    monkeypatch.setattr(maintenance_dag, "maintenance_gateway", lambda conn_id: stage.maintenance)
    monkeypatch.setattr(maintenance_dag, "guarded_storage_opener", lambda conn_id: CheckpointStorage.open)
    monkeypatch.setattr(maintenance_dag, "job_savepoints", lambda *_: savepoints_of(stage, tmp_path))
    yield stage
    for number, data in originals.items():
        remove(metadata_of(stage, number))
        metadata_of(stage, number).write_bytes(data)
    remove(orphans_of(stage))
    _acknowledge(stage, originals[3])


def _run(stage: WrittenStage, job: str) -> None:
    attempt = stage.attempt(job, num_retained=2)
    stage.take(attempt, state=0)
    for i in range(2):
        stage.take(attempt, stage.snapshot(attempt, f"step {i}", rows=10), state=[*LARGE_STATE, i])
    attempt.finish(AttemptStatus.FAILED)


def recover(stage: WrittenStage) -> dict[str, RecoveredJob]:
    rows = JobRecovery(new_store(ManualClock()))
    recovered = Recoveries(rows, CheckpointStorage.open).recover(stage.storage.base_uri)
    return {each.job_id: each for each in recovered}


def metadata_of(stage: WrittenStage, number: int = 3) -> Path:
    return local_path(f"{stage.storage.base_uri}/{job_id_of(BAD)}/chk-{number}/_metadata")


def orphans_of(stage: WrittenStage) -> Path:
    return local_path(f"{stage.storage.base_uri}/{job_id_of(BAD)}/_orphans")


def maintain(stage: WrittenStage) -> None:
    """Collect, prune and verify all jobs; only their last errors may be raised."""
    for work in (
        partial(maintenance_dag.collect_all, quarantine=timedelta(days=1)),
        maintenance_dag.prune_all,
        maintenance_dag.verify_all,
    ):
        with suppress(StorageError, CorruptStateError):
            work()
    assert stage.statuses(GOOD) == {1: "subsumed", 2: "completed", 3: "completed"}


def _acknowledge(stage: WrittenStage, data: bytes) -> None:
    """Let the row name the metadata as it is, as the job itself may."""
    with stage.store.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(
            text(
                "UPDATE statecheck_checkpoint SET metadata_size = :size, metadata_sha256 = :sha256 "
                "WHERE job_id = :job AND checkpoint_id = 3"
            ),
            {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "job": job_id_of(BAD)},
        )


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_whatever_is_in_place_of_metadata_stops_no_other_job(stage, kind):
    put(kind, metadata_of(stage))
    recovered = recover(stage)
    assert recovered[job_id_of(GOOD)].is_recovered
    bad = recovered[job_id_of(BAD)]
    assert f"{stage.storage.base_uri}/{job_id_of(BAD)}/chk-3" not in bad.checkpoints
    maintain(stage)


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_whatever_is_in_place_of_the_record_of_orphans_stops_no_other_job(stage, kind):
    put(kind, orphans_of(stage))
    maintain(stage)
    assert recover(stage)[job_id_of(GOOD)].is_recovered


def _change_metadata(stage: WrittenStage, original: bytes, seed: int) -> None:
    values = body_of(original)
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 1, 1, 3])):
        values = changed(values, rng)
    data = sealed(values)
    metadata_of(stage).write_bytes(data)
    _acknowledge(stage, data)


@pytest.mark.parametrize("first", [0])
def test_metadata_with_odd_values_and_a_right_checksum_stops_no_other_job(stage, first):
    original = metadata_of(stage).read_bytes()
    for seed in range(first, first + 15):
        with named_in_failure(seed):
            _change_metadata(stage, original, seed)
            assert recover(stage)[job_id_of(GOOD)].is_recovered
            if seed % 5 == 0:
                maintain(stage)


@pytest.mark.soak
def test_metadata_with_odd_values_and_a_right_checksum_stops_no_other_job_for_long(stage):
    original = metadata_of(stage).read_bytes()
    for seed in new_seeds(seconds=60):
        with named_in_failure(seed):
            _change_metadata(stage, original, seed)
            assert recover(stage)[job_id_of(GOOD)].is_recovered
            maintain(stage)


def _operator(parallelism: int) -> dict[str, Any]:
    return {"operator_id": "0" * 32, "uid": "x", "parallelism": parallelism, "max_parallelism": parallelism}


@pytest.mark.parametrize(
    "change",
    [
        {"request_key": "a\0b"},
        {"request_key": "x" * 100},
        {"run": "a\0b"},
        {"request_key": "\ud800"},
        {"epoch": 2**40},
        {"epoch": 2**64},
        {"epoch": 10**400},
        {"state": {"kind": "file", "uri": "job:x", "size": 2**64, "sha256": ""}},
        {"state": {"kind": "file", "uri": "job:x", "size": -1, "sha256": ""}},
        {"operator_states": [_operator(2**62)]},
        {"checkpoint_id": 2**63},
        {"generation": 2**31},
        {"created_at": "9999-12-31T23:59:59-14:00"},
    ],
    ids=str,
)
def test_values_that_no_column_stores_keep_only_their_job_from_its_recovery(stage, change):
    for number in (2, 3):
        path = metadata_of(stage, number)
        path.write_bytes(sealed(body_of(path.read_bytes()) | change))
    recovered = recover(stage)
    assert recovered[job_id_of(GOOD)].is_recovered
    bad = recovered[job_id_of(BAD)]
    assert bad.problems or bad.is_recovered


def test_an_error_of_no_class_of_this_package_is_reported_after_all_jobs(stage, monkeypatch):
    def collect(gateway: Any, job_id: JobId, opener: Any, **options: Any) -> Any:
        if job_id == job_id_of(BAD):
            raise ZeroDivisionError("a fault")
        return collect_job(gateway, job_id, opener, **options)

    monkeypatch.setattr(maintenance_dag, "collect_job", collect)
    with pytest.raises(StorageError, match=rf"1 failure.*{job_id_of(BAD)}: ZeroDivisionError: a fault"):
        maintenance_dag.collect_all()
    maintain(stage)
