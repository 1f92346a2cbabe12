"""Whose each file below the checkpoint directory is, and with what it is deleted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    streams_of_subtask,
)
from airflow_provider_statecheck.maintenance.gc import CollectedJob, collect_job
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.snapshots.live_snapshots import StageSnapshots
from airflow_provider_statecheck.spark.stages.stage import Count, Stage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_files import discard_state
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.spark.stages.functions import Numbering, RunningBalance
from tests.spark.stages.stage_tries import JOB, StageTries
from tests.spark.stages.test_stage import RUNNING, payments

SUBTASKS = 2
MERGING = "execution.checkpointing.file-merging.enabled"
INCREMENTAL = "execution.checkpointing.incremental"
STORAGE = "execution.checkpointing.storage"


def stage(tries: StageTries, backend: str = "arrow") -> Stage:
    """Return a stage of three vertices: operator state, keyed state with two states, and an aggregate."""
    return (
        Stage("stage", parallelism=SUBTASKS, state_backend=backend)
        .source(ParquetSource(str(tries.input), files_per_increment=1))
        .map(Numbering(), uid="numbering")
        .key_by("account", order_by="number")
        .process(RunningBalance(), uid="balance", output=RUNNING)
        .key_by("account")
        .aggregate(uid="payments", n=Count())
        .sink(ParquetSink(str(tries.output)))
    )


def run(
    tries: StageTries,
    name: str = "2026-01-01",
    backend: str = "arrow",
    threshold: int = 0,
    config: Mapping[str, str] | None = None,
) -> None:
    """Run the stage on new files with a checkpoint after each of four increments; two are retained."""
    tries.write_input(*payments())
    settings = DriverSettings(data_inline_threshold=threshold, checkpoint_interval="10 ms", state_config=config or {})
    tries.run(
        stage(tries, backend), settings, num_retained=2, retained_runs=0, owner=make_owner(run_key=name, run_id=name)
    )


def files(tries: StageTries) -> set[str]:
    return set(tries.storage.list_files(f"{tries.storage.base_uri}/{job_id_of(JOB)}"))


def owners(tries: StageTries) -> Mapping[str, frozenset[int]]:
    """Return the retained checkpoints that name each file of the job."""
    root = f"{tries.storage.base_uri}/{job_id_of(JOB)}"
    named: dict[str, set[int]] = {file: set() for file in files(tries)}
    for checkpoint in tries.completed():
        uris = {*document_uris(load_document(tries.storage, checkpoint)), str(checkpoint.metadata_uri)}
        for file, ids in named.items():
            if any(f"{root}/{file}" == uri or f"{root}/{file}".startswith(f"{uri}/") for uri in uris):
                ids.add(checkpoint.checkpoint_id)
    return {file: frozenset(ids) for file, ids in named.items()}


def require_owned(tries: StageTries) -> Mapping[str, frozenset[int]]:
    """Require that each file belongs to a checkpoint, and that each lies where its scope says; return the owners."""
    found = owners(tries)
    for checkpoint in tries.completed():
        assert CheckpointVerifier(tries.storage, is_deep=True).verify(checkpoint).is_restorable
    for file, ids in found.items():
        assert ids, f"nobody names {file}"
        own = re.match(r"chk-(\d+)/", file)
        assert own is None or ids == {int(own[1])}, f"{file} is not of one checkpoint"
        assert own is not None or re.match(r"shared/[0-9a-f]{32}/(state/\d+-|[^/]+-[0-9a-f]{12}/\d+-)", file), file
    return found


def collect(tries: StageTries) -> CollectedJob:
    maintenance = JobMaintenance(tries.store, KnownRuns(), NoTokens(), tries.clock)
    return collect_job(maintenance, job_id_of(JOB), CheckpointStorage.open)


def require_nothing_to_collect(tries: StageTries) -> None:
    before = files(tries)
    assert collect(tries).deleted == {}
    assert files(tries) == before


@pytest.mark.parametrize("is_merged", rest_in_soak([True, False], True))
def test_incremental_checkpoint_has_its_own_files_and_shares_state(tries: StageTries, *, is_merged: bool) -> None:
    run(tries, config={MERGING: str(is_merged)})
    found = require_owned(tries)
    assert any(file.startswith("shared/") for file in found), "keyed state is shared"
    balance = next(state for state in tries.document().operator_states if state.uid == "stage/balance")
    for subtask in balance.subtask_states.values():
        streams = [s for s in streams_of_subtask(subtask) if not isinstance(s, ByteStreamStateHandle)]
        own = {s.uri for s in streams if f"/chk-{tries.completed()[-1].checkpoint_id}/" in s.uri}
        assert len(own) == 1, "the descriptions of keyed and operator state"
        assert any(isinstance(s, SegmentFileStateHandle) for s in streams) == is_merged
    require_nothing_to_collect(tries)


@pytest.mark.soak
def test_next_run_leaves_nothing_of_the_one_before_but_what_it_shares(tries: StageTries) -> None:
    run(tries)
    before = {file for file in files(tries) if file.startswith("chk-")}
    run(tries, "2026-01-02")
    assert before.isdisjoint(files(tries))
    require_owned(tries)
    require_nothing_to_collect(tries)


@pytest.mark.parametrize(
    ("backend", "config"), rest_in_soak([("filesystem", {}), ("arrow", {INCREMENTAL: "false"})], ("filesystem", {}))
)
def test_full_checkpoint_has_all_its_state_to_itself(tries: StageTries, backend: str, config: dict[str, str]) -> None:
    run(tries, backend=backend, config=config)
    assert all(file.startswith("chk-") for file in require_owned(tries))
    require_nothing_to_collect(tries)
    run(tries, "2026-01-02")
    assert any(file.startswith("shared/") for file in require_owned(tries)), "incremental again"
    require_nothing_to_collect(tries)


@pytest.mark.soak
@pytest.mark.parametrize("config", rest_in_soak([{STORAGE: "jobmanager"}, {}], {}), ids=["memory", "small"])
def test_inline_state_is_in_the_metadata(tries: StageTries, config: dict[str, str]) -> None:
    run(tries, threshold=20 * 1024, config=config)
    assert {file.rpartition("/")[2] for file in require_owned(tries)} == {"_metadata"}


@pytest.mark.soak
def test_spilled_state_lies_with_its_checkpoint(tries: StageTries, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = "airflow_provider_statecheck.storage.views.state_streams.spill_above_budget.__kwdefaults__"
    monkeypatch.setattr(spill, {"budget": 100})
    run(tries, threshold=20 * 1024)
    found = require_owned(tries)
    assert any(not file.endswith("/_metadata") for file in found)
    assert all(file.startswith("chk-") for file in found)
    require_nothing_to_collect(tries)


@pytest.mark.parametrize("form", rest_in_soak(SavepointFormat, SavepointFormat.CANONICAL))
def test_savepoint_has_everything_in_its_directory_and_is_its_users(tries: StageTries, form: SavepointFormat) -> None:
    run(tries)
    before = files(tries)
    pointer = tries.savepoint(savepoint_format=form)
    storage = tries.storage.allowing(pointer)
    resolved = resolve_checkpoint(storage, pointer)
    document, _ = resolved.read()
    named = {*document_uris(document), resolved.metadata_handle.uri}
    assert {f"{pointer}/{name}" for name in storage.list_files(pointer)} == named
    assert files(tries) == before
    run(tries, "2026-01-02")
    collect(tries)
    assert {f"{pointer}/{name}" for name in storage.list_files(pointer)} == named
    resolved.dispose()
    assert storage.list_files(pointer) == {}


def test_snapshot_of_a_dataframe_is_shared_until_the_last_checkpoint_that_names_it(tries: StageTries) -> None:
    attempt = tries.attempt(num_retained=1)
    snapshots = StageSnapshots(tries.storage, attempt.grant.attempt, None)
    kept = snapshots.write(((), "kept"), tries.spark.range(5), "f", lambda: 0.0)
    dropped = snapshots.write(((), "dropped"), tries.spark.range(5), "f", lambda: 0.0)
    for handles in ((kept.handle, dropped.handle), (kept.handle,)):
        attempt.take_checkpoint(CheckpointContent(snapshots=handles))
    assert {file.split("/")[2] for file in require_owned(tries) if file.startswith("shared/")} == {
        kept.handle.uri.split("/")[-2]
    }
    attempt.finish(AttemptStatus.FINISHED)
    require_nothing_to_collect(tries)


def test_failed_snapshot_leaves_no_directory(tries: StageTries, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = tries.attempt()
    snapshots = StageSnapshots(tries.storage, attempt.grant.attempt, None)
    monkeypatch.setattr("airflow_provider_statecheck.spark.snapshots.live_snapshots.write_file", fail)
    with pytest.raises(OSError, match="planned"):
        snapshots.write(((), "lost"), tries.spark.range(5), "f", lambda: 0.0)
    assert files(tries) == set()


def fail(*_: Any) -> None:
    raise OSError("planned")


def test_state_of_tasks_is_deleted_by_its_task_alone(tries: StageTries) -> None:
    attempt = tries.attempt().grant.attempt
    writing = StateWriting(epoch=attempt.epoch, inline_threshold=0)
    stream = FsCheckpointStorageAccess(tries.storage, attempt, writing=writing).create_task_owned_state_stream()
    stream.write(b"a log that is read later")
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    run(tries)
    collect(tries)
    assert Path(handle.uri.removeprefix("file://")).parent.name == attempt.operator_id
    assert {file for file in files(tries) if file.startswith("taskowned/")} == {
        handle.uri.partition(f"{job_id_of(JOB)}/")[2]
    }
    discard_state(tries.storage, handle)
    require_owned(tries)
