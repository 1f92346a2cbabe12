"""The coordinator's contract over mailboxes: on local files, on S3, and on an S3 that fails every few requests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, StageGateway
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import open_filesystem
from tests.conformance.databases import OnSqlite
from tests.conformance.test_coordinator import SqlContract
from tests.object_store import Fault, ObjectStore

PATIENCE_SECONDS = 600.0
FAULTS = [Fault.SLOW_DOWN, Fault.REPLY_LOST, Fault.INTERNAL_ERROR, Fault.DROPPED, Fault.CUT_SHORT]


class AnyDriverGateway:
    """Registers each attempt as its task would, and calls as its driver would; a driver's pause is a relay's look."""

    def __init__(self, coordinator: StageGateway, storage: CheckpointStorage) -> None:
        self._coordinator = coordinator
        self._storage = storage
        self._drivers: dict[AttemptRef, MailboxGateway] = {}

    def __getattr__(self, name: str) -> Any:
        verb = STAGE_CALLS[name]

        def call(*arguments: Any, **named: Any) -> Any:
            message = verb.message_of(*arguments, **named)
            driver = self._driver(getattr(message, "attempt", None), getattr(message, "job_id", None))
            return getattr(driver, name)(*arguments, **named)

        return call

    def adopt(self, *arguments: Any, **named: Any) -> None:
        """Adopt an attempt, which tasks do themselves."""
        self._coordinator.adopt(*arguments, **named)

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Register as a task, then begin as its driver."""
        granted = self._coordinator.register(request)
        if granted.attempt not in self._drivers:
            self._drivers[granted.attempt] = self._opened(granted.attempt, request)
        return self._drivers[granted.attempt].register(request)

    def _opened(self, attempt: AttemptRef, request: RegisterAttempt) -> MailboxGateway:
        mailbox = Mailbox(self._storage, attempt)
        mailbox.open({})
        relay = MailboxRelay(mailbox, self._coordinator, request, attempt)
        return MailboxGateway(Mailbox(self._storage, attempt), PATIENCE_SECONDS, sleep=lambda _: relay.carry())

    def _driver(self, attempt: AttemptRef | None, job_id: JobId | None) -> Any:
        # Before a job has an attempt, and for what no driver calls, there is only the task.
        of_job = [driver for ref, driver in self._drivers.items() if ref.job_id == job_id]
        return self._drivers.get(attempt) if attempt in self._drivers else next(iter(of_job), self._coordinator)


class MailboxContract(OnSqlite, SqlContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open(str(tmp_path / "checkpoints"))

    @pytest.fixture
    def coordinator(self, engine: Any, clock: Any, liveness: Any, dags: Any, storage: CheckpointStorage) -> Any:
        self.database = engine
        return AnyDriverGateway(AttemptCoordinator(SqlJobStore(engine, clock), liveness, dags), storage)


class TestOnLocalFiles(MailboxContract): ...


@pytest.mark.soak
class TestOnS3(MailboxContract):
    @pytest.fixture
    def storage(self, object_store: ObjectStore, tmp_path: Path) -> CheckpointStorage:
        object_store.faults.clear()
        return CheckpointStorage.open(f"s3://{object_store.bucket}/{uuid.uuid4().hex}", **object_store.storage_options)


@pytest.mark.soak
class TestOnAnS3ThatFailsEveryFewRequests(TestOnS3):
    """Each request of a kind fails in turn, before or after it has an effect."""

    @pytest.fixture
    def storage(self, object_store: ObjectStore, tmp_path: Path) -> Iterator[CheckpointStorage]:
        object_store.faults.clear()
        for number, fault in enumerate(FAULTS * 10):
            object_store.faults.inject(fault, key="/mail/", skip=3 * number + 2)
        uri = f"s3://{object_store.bucket}/{uuid.uuid4().hex}"
        options = object_store.storage_options
        filesystem = open_filesystem(uri, options | {"skip_instance_cache": True})
        filesystem.retries = 1
        retries = RetryPolicy(attempts=4, first_pause_seconds=0.0, sleep=lambda _: None)
        yield CheckpointStorage(filesystem, uri, options=options, retries=retries)
        object_store.faults.clear()
