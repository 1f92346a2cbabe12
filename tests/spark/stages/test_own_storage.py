"""A stage whose driver and tasks write to a checkpoint storage of the user's own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStorageLocation,
    CheckpointStreamFactory,
    StateWriting,
)
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_job_directory import STORAGE, require_owned, stage
from tests.spark.stages.test_stage import payments


class SeenStorage(FsCheckpointStorageAccess):
    """Files as in this package; notes, beside the checkpoint directory, who asks for streams in which checkpoint."""

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting) -> None:
        super().__init__(storage, attempt, writing=writing)
        self.notes = notes_of(storage)

    @override
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        self._note("driver", checkpoint_id)
        return super().initialize_location_for_checkpoint(checkpoint_id)

    @override
    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        self._note("task", checkpoint_id)
        return super().resolve_checkpoint_storage_location(checkpoint_id, reference)

    def _note(self, who: str, checkpoint_id: int) -> None:
        self.notes.mkdir(exist_ok=True)
        (self.notes / f"{who} {checkpoint_id} {uuid.uuid4().hex}").touch()


class SeenStorageFactory:
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> SeenStorage:
        return SeenStorage(storage, attempt, writing)

    def get_identifier(self) -> str:
        return "seen"


def notes_of(storage: CheckpointStorage) -> Path:
    return Path(f"{storage.base_uri.removeprefix('file://')}-notes")


def seen(tries: StageTries) -> dict[str, set[int]]:
    """Return the checkpoints in which the driver and tasks asked for streams."""
    found: dict[str, set[int]] = {}
    for name in (note.name for note in notes_of(tries.storage).iterdir()):
        who, checkpoint_id, _ = name.split()
        found.setdefault(who, set()).add(int(checkpoint_id))
    return found


def settings(storage: str) -> DriverSettings:
    return DriverSettings(data_inline_threshold=0, checkpoint_interval="10 ms", state_config={STORAGE: storage})


def test_driver_and_tasks_write_to_one_storage(tries: StageTries) -> None:
    tries.write_input(*payments())
    tries.run(stage(tries), settings(f"{__name__}:SeenStorageFactory"))
    checkpoints = {checkpoint.checkpoint_id for checkpoint in tries.completed()}
    found = seen(tries)
    assert checkpoints
    assert checkpoints <= found["driver"]
    assert checkpoints <= found["task"]
    require_owned(tries)


def test_storage_that_cannot_be_loaded_is_refused_before_any_work(tries: StageTries) -> None:
    tries.write_input(*payments())
    with pytest.raises(
        InvalidConfigurationError, match=r"execution\.checkpointing\.storage.*found 'no\.such\.Storage'"
    ):
        tries.run(stage(tries), settings("no.such.Storage"))
    [attempt] = tries.view().attempts
    assert attempt.status is AttemptStatus.FAILED
    assert tries.storage.list_files(tries.storage.base_uri) == {}


def test_storage_of_ones_own_is_that_of_steps_too(tries: StageTries) -> None:
    attempt = tries.attempt(settings(f"{__name__}:SeenStorageFactory"))
    attempt.take_checkpoint(CheckpointContent(state={"values": {"n": 1}}))
    assert seen(tries) == {"driver": {1}}
