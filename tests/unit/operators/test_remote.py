"""What the retry of a task finds whose look at its job has failed, with an operator that reconnects as Airflow's do."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseOperator, ResumableJobMixin
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.hooks import submitted_stage
from airflow_provider_statecheck.operators.checkpointed import StageTerminatedError
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.spark.driver.mailbox import MailboxHandover
from tests.messages import make_acknowledgement
from tests.served_rows import job_in
from tests.stand_in_task import DAG_ID, RUN_ID, TASK_ID, context_of


class Jobs:
    """A service with one job at a time."""

    def __init__(self) -> None:
        self.status = "running"
        self.mailboxes: list[str] = []
        self.failures: list[Exception] = []
        self.is_reachable = True

    def poll(self) -> None:
        """Fail as planned, or end the job."""
        if self.failures:
            raise self.failures.pop(0)
        self.status = "succeeded"


JOBS = Jobs()


class JobOperator(ResumableJobMixin, BaseOperator):
    """As operators of providers are that wait in the worker."""

    external_id_key = "job"
    template_fields = ()

    def execute(self, context: Any) -> Any:
        return self.execute_resumable(context)

    def submit_job(self, context: Any) -> Any:
        JOBS.status = "running"
        return len(JOBS.mailboxes)

    def get_job_status(self, external_id: Any, context: Any) -> str:
        if not JOBS.is_reachable:
            raise ConnectionError("The service does not answer.")
        return JOBS.status

    def is_job_active(self, status: str) -> bool:
        return status == "running"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "succeeded"

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        JOBS.poll()

    def get_job_result(self, external_id: Any, context: Any) -> Any:
        return external_id

    def on_kill(self) -> None:
        JOBS.status = "cancelled"


class CheckpointedJobOperator(RemoteDriverMixin, JobOperator):
    def add_to_job(self, additions: Additions, submission: str) -> None:
        JOBS.mailboxes.append(additions.mailbox)


class DeferringOperator(BaseOperator):
    template_fields = ()

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(hours=1)), method_name="complete")


class CheckpointedDeferringOperator(RemoteDriverMixin, DeferringOperator):
    def add_to_job(self, additions: Additions, submission: str) -> None: ...


class Task:
    """A task over its tries."""

    def __init__(self, folder: Path, jobs: Jobs) -> None:
        self.folder = folder
        self.jobs = jobs

    def run(self, number: int, max_tries: int = 2) -> Any:
        """Run a try."""
        self.operator = operator = CheckpointedJobOperator(
            task_id=TASK_ID, checkpoint_dir=str(self.folder / "checkpoints"), ship_package=False
        )
        context: Any = context_of(self.folder, number, max_tries)
        try:
            return operator.execute(context)
        except Exception as error:
            operator.fail_after_end(error)  # as Airflow's listener
            raise

    @property
    def rows(self) -> JobView:
        return job_in(self.folder, f"{DAG_ID}/{RUN_ID}")

    def statuses(self) -> list[AttemptStatus]:
        return [each.status for each in self.rows.attempts]

    def driver_with_a_checkpoint_on_its_way(self) -> tuple[MailboxGateway, AcknowledgeCheckpoint]:
        """Return a driver of the job, and the acknowledgement of the checkpoint that it has triggered."""
        found = MailboxHandover.read(self.jobs.mailboxes[-1], {})
        driver = MailboxGateway(found.mailbox, found.patience_seconds, sleep=lambda _: time.sleep(0.02))
        attempt = driver.register(found.registration).attempt
        pending = driver.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        return driver, make_acknowledgement(attempt, pending)


@pytest.fixture
def task(in_worker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setitem(globals(), "JOBS", Jobs())
    return Task(tmp_path, JOBS)


LOST = ConnectionError("The reply was lost.")


def test_a_look_that_fails_leaves_the_driver_to_the_retry_which_reconnects(task: Task) -> None:
    task.jobs.failures = [LOST]
    with pytest.raises(ConnectionError):
        task.run(1)
    assert task.statuses() == [AttemptStatus.RUNNING]
    task.run(2)
    assert task.statuses() == [AttemptStatus.FINISHED]
    assert len(task.jobs.mailboxes) == 1


def test_a_job_in_an_unknown_state_keeps_its_attempt(task: Task) -> None:
    task.jobs.failures, task.jobs.is_reachable = [LOST], False
    with pytest.raises(ConnectionError):
        task.run(1)
    assert task.statuses() == [AttemptStatus.RUNNING]


def test_a_job_that_has_failed_ends_its_attempt_and_is_submitted_again(task: Task) -> None:
    def fail() -> None:
        task.jobs.status = "failed"
        raise RuntimeError("The job has failed.")

    task.jobs.poll = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        task.run(1)
    assert task.statuses() == [AttemptStatus.FAILED]
    del task.jobs.poll
    task.run(2)
    assert task.statuses() == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert len(set(task.jobs.mailboxes)) == 2


@pytest.mark.parametrize(
    ("error", "max_tries"), [(LOST, 0), (InvalidConfigurationError("of the job"), 2)], ids=["last try", "no retry"]
)
def test_a_task_that_is_not_retried_ends_its_attempt(task: Task, error: Exception, max_tries: int) -> None:
    task.jobs.failures = [error]
    with pytest.raises(Exception, match=str(error)):
        task.run(1, max_tries)
    assert task.statuses() == [AttemptStatus.FAILED]


def test_submissions_of_two_deployments_have_names_of_their_own(task: Task, tmp_path: Path, monkeypatch) -> None:
    names: list[str] = []

    def note(_: Any, additions: Additions, submission: str) -> None:
        names.append(submission)
        JOBS.mailboxes.append(additions.mailbox)

    monkeypatch.setattr(CheckpointedJobOperator, "add_to_job", note)
    for attempt in range(2):
        task.jobs.failures = [RuntimeError("lost")]
        with pytest.raises(RuntimeError):
            task.run(1, 0)
        (tmp_path / "store.json").unlink()
        assert len(names) == attempt + 1
    assert len(set(names)) == 2
    assert {len(each) for each in names} == {32}


def test_the_relay_of_a_deferred_task_has_the_timeout_of_the_connection(
    in_worker: None, api: str, tmp_path: Path, monkeypatch
) -> None:
    connection = {"conn_type": "statecheck", "host": api, "extra": {"timeout": 7}}
    monkeypatch.setenv("AIRFLOW_CONN_STATECHECK_DEFAULT", json.dumps(connection))
    operator = CheckpointedDeferringOperator(
        task_id=TASK_ID, checkpoint_dir=str(tmp_path / "checkpoints"), ship_package=False
    )
    context: Any = context_of(tmp_path, 1, 2)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    _, kwargs = deferred.value.trigger.serialize()
    assert kwargs["access"]["timeout_seconds"] == 7.0


@pytest.mark.parametrize(
    ("is_answering", "seconds", "status"),
    [(True, 60.0, CheckpointStatus.COMPLETED), (False, 0.1, CheckpointStatus.ABORTED)],
    ids=["driver that answers", "driver that does not"],
)
def test_a_task_that_is_ended_waits_for_a_checkpoint_on_its_way_and_cancels_its_job(
    task: Task, monkeypatch: pytest.MonkeyPatch, is_answering: bool, seconds: float, status: CheckpointStatus
) -> None:
    monkeypatch.setattr(submitted_stage, "COMPLETION_SECONDS", seconds)

    def end() -> None:
        driver, acknowledgement = task.driver_with_a_checkpoint_on_its_way()
        if is_answering:
            threading.Thread(target=driver.acknowledge, args=(acknowledgement,)).start()
        task.operator.on_kill()

    monkeypatch.setattr(task.jobs, "poll", end)
    with pytest.raises(StageTerminatedError):
        task.run(1)
    assert task.jobs.status == "cancelled"
    assert "job" not in json.loads((task.folder / "store.json").read_text()), "a retry would look for it"
    assert task.statuses() == [AttemptStatus.FAILED]
    assert [each.status for each in task.rows.checkpoints] == [status]
