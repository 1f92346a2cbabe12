"""Stages with keyed state whose checkpoints a real coordinator completes, and whose old files are really deleted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    PendingCheckpoint,
    RestoreSource,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.spark.checkpoint_writer import StageSavepoints
from airflow_provider_statecheck.storage.discarding import EffectDiscards
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from tests.messages import make_acknowledgement, make_registration, make_savepoint_request, present, source_at
from tests.written_state import StatefulJob


@dataclass
class QueriedStage:
    """
    One stage of a job, as its driver would run it.

    :param store: The rows.
    :param written: The functions of the stage, which share its storage, its job and its name.
    """

    store: JobStore
    written: tuple[StatefulJob, ...]
    num_retained: int = 1
    attempt: AttemptRef = field(init=False)

    def __post_init__(self) -> None:
        self._coordinator = AttemptCoordinator(self.store)
        self._documents = DocumentCache(lambda _: self.storage)
        self._saved: list[OperatorState] = []

    @property
    def storage(self) -> CheckpointStorage:
        return self.written[0].storage

    @property
    def job_id(self) -> JobId:
        return job_id_of(self.written[0].job_name)

    def begin(self, parallelism: int = 2, **registration: Any) -> None:
        """Register an attempt, and open its functions with the state that it restores."""
        grant = self.register(**registration)
        if grant.is_restore:
            self.confirm_restore(grant)
        restored = self._saved if grant.is_restore else [None] * len(self.written)
        for function, state in zip(self.written, restored, strict=True):
            function.open(parallelism, state)

    def register(self, **registration: Any) -> AttemptGrant:
        """Register an attempt, which restores nothing yet."""
        stage, base = self.written[0], self.storage.base_uri
        grant = self._coordinator.register(
            make_registration(
                job_name=stage.job_name,
                uid=stage.stage,
                storage_base=base,
                num_retained=self.num_retained,
                **registration,
            )
        )
        self.attempt = grant.attempt
        return grant

    def confirm_restore(self, grant: AttemptGrant) -> None:
        """Confirm that the newest candidate was restored."""
        restored_id = grant.candidates[0].checkpoint_id
        self._coordinator.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored_id))

    def state(self, key: Any, name: str, namespace: str | None = None) -> Any:
        """Return a state of the first function that has it, with a key as the current one."""
        function = next(each for each in self.written if name in {d.name for d in each.descriptors})
        return function.state(key, name, namespace)

    def put(self, name: str, values: dict[Any, Any]) -> None:
        """Set a value state of several keys."""
        for key, value in values.items():
            self.state(key, name).update(value)

    def checkpoint(self, **values: dict[Any, Any]) -> int:
        """
        Take a checkpoint, delete the files that only older ones need, and return its id.

        :param values: Values by key to set before, by the names of value states.
        """
        for name, of_keys in values.items():
            self.put(name, of_keys)
        pending, data = self.write()
        reply = self._coordinator.acknowledge(
            make_acknowledgement(
                self.attempt, pending, metadata_size=len(data), metadata_sha256=hashlib.sha256(data).hexdigest()
            )
        )
        assert reply.is_completed
        discarded = EffectDiscards(self.storage, self._documents).discard(reply.effects)
        assert discarded == tuple(each.checkpoint_id for each in reply.effects.discards)
        self._coordinator.confirm_discards(self.attempt, discarded)
        return pending.checkpoint_id

    def write(self) -> tuple[PendingCheckpoint, bytes]:
        """Write the files of a checkpoint without the acknowledgement that completes it."""
        pending = self._coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key()))
        for function in self.written:
            function.taken = pending.checkpoint_id - 1
        self._saved = [function.operator() for function in self.written]
        pointer = self.written[0].publish(*self._saved)
        return pending, self.storage.read_bytes(f"{pointer}/_metadata")

    def savepoint(self) -> str:
        """Take a savepoint of the latest checkpoint and return its pointer."""
        request = JobSavepoints(self.store).request(make_savepoint_request(self.attempt))
        source = present(self._coordinator.latest(self.job_id, self.attempt.operator_id))
        directory = f"{self.storage.base_uri}/savepoints"
        StageSavepoints(self._coordinator, self.storage, self._documents, self.attempt, directory).serve(
            (request,), source
        )
        newest = self._coordinator.describe(self.job_id).checkpoints[-1]
        assert newest.properties.is_savepoint
        return newest.location

    def source(self, pointer: str) -> RestoreSource:
        """Return a savepoint as an attempt finds it that starts from it."""
        found: RestoreSource = present(source_at(self.storage, pointer, self.written[0].stage))
        return found

    def pointer(self, checkpoint_id: int) -> str:
        return f"{self.storage.base_uri}/{self.job_id}/chk-{checkpoint_id}"

    def close(self) -> None:
        for function in self.written:
            function.close()
