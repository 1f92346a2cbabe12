"""Airflow hook for jobs, checkpoints, savepoints and queryable state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Unpack

from airflow.sdk import BaseHook

from airflow_provider_statecheck.checkpoint.ids import (
    given_job_id,
    is_test_job,
    job_id_of,
    job_name,
    operator_id_of,
)
from airflow_provider_statecheck.checkpoint.store import RECENT, CheckpointPage
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.hooks.connection import (
    CONN_TYPE,
    DEFAULT_CONN_ID,
    check_address,
    coordinator_address,
    pointer_storage_opener,
    storage_opener,
)
from airflow_provider_statecheck.hooks.identity import job_name_of, owner_of
from airflow_provider_statecheck.hooks.transport import (
    airflow_gateway,
    coordinator_rows,
    find_job,
    is_orm_open,
    is_test_run,
    job_savepoints,
    maintenance_gateway,
    restore_gateway,
    running_context,
    state_reads,
)
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
    from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord
    from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
    from airflow_provider_statecheck.flink.participants import OperatorCoordinatorContext
    from airflow_provider_statecheck.flink.plan import ExecutionTask
    from airflow_provider_statecheck.gateway.verbs import StageGateway
    from airflow_provider_statecheck.maintenance.job_restore import RestoredJob
    from airflow_provider_statecheck.queryable.job_contents import JobContents, StageContents
    from airflow_provider_statecheck.queryable.queries import QueryableName, StateReply
    from airflow_provider_statecheck.queryable.reads import CheckpointChoice, ReadOptions, StateReads


class StatecheckHook(BaseHook):
    """
    Read jobs and checkpoints from the coordinator, and queryable state from checkpoints.

    The name of a job is the ``job`` argument of its Airflow operators, by default ``dag_id/<logical date, else
    partition, else run id>``. The names of test runs start with ``test/``.

    :param statecheck_conn_id: Connection to the server, with a login if tasks cannot authenticate on their own. If the
        default connection is missing, the hook uses this Airflow's api-server.
    """

    conn_name_attr = "statecheck_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Statecheck coordinator"

    def __init__(self, statecheck_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.statecheck_conn_id = statecheck_conn_id
        self._gateway: StageGateway | None = None
        self._states: StateReads | None = None

    @override
    def get_conn(self) -> StageGateway:
        """
        Return a gateway to the coordinator.

        :raises EnvironmentNotReadyError: if Airflow's database is not accessible and no task is running.
        """
        if self._gateway is None:
            self._gateway = airflow_gateway(self.statecheck_conn_id)
        return self._gateway

    def test_connection(self) -> tuple[bool, str]:
        """
        Test the connection to the coordinator over HTTP.

        :return: Whether the test succeeded, and a message.
        """
        try:
            return True, check_address(coordinator_address(self.statecheck_conn_id))
        except StateCheckError as error:
            return False, str(error)

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self.get_conn().jobs()

    def checkpoints(
        self, job: str, uid: str | None = None, *, before: int | None = None, limit: int = RECENT
    ) -> tuple[CheckpointRecord, ...]:
        """
        Return the newest checkpoints of a job in ascending order, including ended ones.

        :param uid: Uid of an operator; by default all operators.
        :param before: Upper bound of the ids, exclusive; the first id of a page selects the previous page.
        :param limit: Maximum number of checkpoints, at most 1,000.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        operator_id = None if uid is None else operator_id_of(uid)
        page = CheckpointPage(before=before, limit=limit, operator_id=operator_id)
        newest_first = self.get_conn().checkpoints(job_id_of(job), page)
        if not newest_first:
            # Raises if the job is unknown.
            self.get_conn().describe(job_id_of(job))
        return newest_first[::-1]

    def latest(self, job: str, uid: str) -> CheckpointRecord | None:
        """
        Return the newest completed checkpoint of an operator, ``None`` if it has none.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self.get_conn().latest(job_id_of(job), operator_id_of(uid))

    def state_client(self) -> StateReads:
        """
        Return the client of queryable state with all its reads, such as ``get_kv_state`` for objects of your classes.

        It reads the checkpoint storage in this process if Airflow's database is accessible, with the credentials of
        ``[statecheck] storage_conn_id``. Otherwise it asks the server with the token of the running task.

        :raises EnvironmentNotReadyError: if Airflow's database is not accessible and no task is running.
        """
        if self._states is None:
            self._states = state_reads(self.statecheck_conn_id)
        return self._states

    def query_state(
        self, job: str, name: str, key: Any, *, user_key: Any = None, **options: Unpack[ReadOptions]
    ) -> StateReply:
        """
        Return the reply for one key of a job's queryable state, whose ``value`` is the value.

        :param job: Name or id of the job. In a task that runs under ``dag.test``, a name means the job of test runs,
            because the Airflow operators use that job there.
        :param name: Queryable name of the state.
        :param key: The key; a tuple for a key of several columns.
        :param user_key: Key of one entry of a map state; without it, the value is the whole map.
        :param options: ``namespace``, and ``checkpoint_id``, ``pointer`` or ``at`` for an earlier checkpoint.
        :raises CheckpointNotFoundError: if there is no such job or checkpoint.
        :raises UnknownKvStateLocationError: if no state of the job has this queryable name; the message lists the
            names.
        :raises UnknownKeyOrNamespaceError: if the key has no state.
        """
        return self.state_client().get(_job_here(job), name, key, user_key=user_key, **options)

    def query_states(
        self, job: str, name: str, keys: Iterable[Any], *, user_key: Any = None, **options: Unpack[ReadOptions]
    ) -> StateReply:
        """
        Return the reply for many keys, all from one checkpoint; its ``found`` maps the keys with state to their values.

        The parameters are those of :meth:`query_state`, with several keys.

        :raises CheckpointNotFoundError: if there is no such job or checkpoint.
        :raises UnknownKvStateLocationError: if no state of the job has this queryable name.
        """
        return self.state_client().get_many(_job_here(job), name, keys, user_key=user_key, **options)

    def queryable_names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        """
        Return the queryable states of a job with their types, first the served and then the refused ones.

        :param job: Name or id of the job.
        :param checkpoint: ``checkpoint_id``, ``pointer`` or ``at`` for an earlier checkpoint.
        :raises CheckpointNotFoundError: if there is no such job or checkpoint.
        """
        return self.state_client().names(_job_here(job), **checkpoint)

    def restore_pointer(self, job: str, uid: str) -> str:
        """
        Return the URI of the checkpoint directory from which an operator would be restored.

        :raises CheckpointNotFoundError: if there is no such job, or the operator has no completed checkpoint.
        """
        latest = self.latest(job, uid)
        if latest is None:
            raise CheckpointNotFoundError(
                f"Operator {uid!r} of job {job!r} has no completed checkpoint; run the stage until it completes one.",
                uid=uid,
            )
        return latest.location

    def savepoint(
        self,
        job: str,
        *,
        target: str | None = None,
        stop: Literal["suspend", "terminate"] | None = None,
        timeout: float = 3600.0,
        storage_conn_id: str | None = None,
    ) -> str:
        """
        Take a savepoint of a whole job, and return the URI of its directory.

        A stage that is running gives its next checkpoint. The call copies the members, so it takes as long as a copy of
        the state; no stage waits for it, unless the job is to stop.

        :param job: Name or id of the job. In a task that runs under ``dag.test``, a name means the job of test runs.
        :param target: Parent directory of the savepoint, by default ``[statecheck] savepoint_dir``.
        :param stop: ``suspend`` stops each stage at its next boundary if the savepoint succeeds; ``terminate`` takes
            the savepoint when the stages that are running have ended. By default the job does not stop.
        :param timeout: The longest wait for the stages in seconds. The maintenance Dag completes a savepoint whose time
            is over.
        :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck]
            storage_conn_id``.
        :raises InvalidConfigurationError: if the target, ``stop`` or ``timeout`` is invalid, or the filesystem of the
            target is not installed.
        :raises CheckpointNotFoundError: if there is no such job, or a stage has no state that is retained.
        :raises CheckpointDeclinedError: if a stage could not give its member.
        :raises CheckpointExpiredError: if the stages have not given their members within the timeout.
        :raises CheckpointError: if the savepoint is complete, and a stage did not stop within the timeout.
        """
        from airflow_provider_statecheck.checkpoint.codec import require
        from airflow_provider_statecheck.checkpoint.ids import new_key
        from airflow_provider_statecheck.maintenance.job_savepoints import savepoint_kind

        # Not a number would never be over.
        require("timeout", timeout, lambda seconds: seconds >= 0, "a number of seconds, 0 or more")
        service = job_savepoints(self.statecheck_conn_id, storage_conn_id, target=target)
        view, key = find_job(service.maintenance, _job_here(job)), new_key()
        service.request(view, target, kind=savepoint_kind(stop), request_key=key)
        return service.pointer_of(view.job.job_id, key, timeout)

    def restore(
        self, job: str, pointer: str, *, dry_run: bool = False, storage_conn_id: str | None = None
    ) -> RestoredJob:
        """
        Restore all stages of a job in place, from a savepoint of the whole job, and return what changes.

        The next attempt of each stage starts from its member of the savepoint. The call clears no tasks;
        ``tasks_to_run`` of the result says which have to run again.

        :param job: Name or id of the job. In a task that runs under ``dag.test``, a name means the job of test runs.
        :param pointer: URI of the savepoint.
        :param dry_run: Whether to only return the result.
        :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck]
            storage_conn_id``.
        :raises CheckpointNotFoundError: if there is no such job or savepoint.
        :raises ConcurrentAttemptError: if a task of the job is running.
        :raises IncompatibleCheckpointError: if it is not a savepoint of this whole job.
        :raises CorruptStateError: if the savepoint cannot be restored.
        """
        from airflow_provider_statecheck.maintenance.job_restore import RestoreJob, read_savepoint

        record = find_job(maintenance_gateway(self.statecheck_conn_id), _job_here(job)).job
        savepoint = read_savepoint(pointer_storage_opener(storage_conn_id, pointer), pointer, record)
        request = RestoreJob(
            job_id=record.job_id, savepoint=savepoint, requested_by="StatecheckHook.restore", dry_run=dry_run
        )
        return restore_gateway(self.statecheck_conn_id).restore(request)

    @contextmanager
    def coordinator(
        self,
        tasks: Sequence[ExecutionTask],
        config: CheckpointConfig | None = None,
        *,
        operator_coordinators: Sequence[OperatorCoordinatorContext] = (),
        job: str | None = None,
        checkpoint_dir: str | None = None,
        storage_conn_id: str | None = None,
    ) -> Iterator[CheckpointCoordinator]:
        """
        Lead the aligned checkpoints of several operators that the running task executes, in a ``with`` block.

        The block raises the error with which the coordinator fails the job or an operator. At its end, checkpoints that
        are pending are aborted.

        :param tasks: The tasks of the operators.
        :param config: Settings of checkpoints, by default those of ``CheckpointConfig()``.
        :param operator_coordinators: Coordinators of single operators, such as those that assign splits of a source;
            each checkpoint contains their state. Each belongs to an operator of ``tasks``.
        :param job: Name of the job, by default that of the Dag run. Under ``dag.test``, it means the job of test runs.
        :param checkpoint_dir: Directory of the checkpoints, by default that of ``config``, or ``[statecheck]
            checkpoint_dir``.
        :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck]
            storage_conn_id``.
        :raises EnvironmentNotReadyError: if no task is running.
        :raises InvalidConfigurationError: if an argument is invalid, or there is no checkpoint directory.
        :raises AccessDeniedError: if the job is named after another Dag.
        """
        from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
        from airflow_provider_statecheck.configuration import StatecheckSettings
        from airflow_provider_statecheck.flink.leading import leading_coordinator
        from airflow_provider_statecheck.gateway.leadership import ending

        config = config or CheckpointConfig()
        settings = StatecheckSettings.from_airflow(
            checkpoint_dir=checkpoint_dir or config.storage_dir, storage_conn_id=storage_conn_id
        )
        context, program = running_context(), _Program()
        with (
            leading_coordinator(
                coordinator_rows(self.statecheck_conn_id),
                storage_opener(settings.storage_conn_id)(settings.checkpoint_dir),
                config,
                job_name=job_name_of(context, job, is_test=is_orm_open()),
                owner=owner_of(context, None),
                tasks=tasks,
                callback=program,
                fail_task=program.fail_task,
                operator_coordinators=operator_coordinators,
            ) as coordinator,
            ending(coordinator.shutdown),
        ):
            yield coordinator
        if program.failure is not None:
            raise program.failure

    def contents(
        self,
        job: str,
        uid: str | None = None,
        *,
        storage_conn_id: str | None = None,
        **checkpoint: Unpack[CheckpointChoice],
    ) -> tuple[StageContents, ...]:
        """
        Return the contents of checkpoints: snapshots, finished items, iterations, values and states.

        Only the metadata is read; ``contents`` of each result reads what it is asked for. An operator whose metadata is
        damaged or missing has an ``error``, which its ``contents`` raises. ``listing`` of a result lists everything and
        what cannot be read.

        :param job: Name or id of the job.
        :param uid: Uid of an operator; by default all operators.
        :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck]
            storage_conn_id``.
        :param checkpoint: ``checkpoint_id``, ``pointer`` or ``at``; by default the latest checkpoint of each operator.
        :raises CheckpointNotFoundError: if there is no such job, operator or checkpoint.
        :raises InvalidConfigurationError: if the checkpoint is given in several ways.
        :raises CorruptStateError: if the metadata of all checkpoints is corrupt.
        :raises StorageError: if the storage fails.
        """
        from airflow_provider_statecheck.gateway.time_travel import AsOf

        return self._contents(storage_conn_id).stages(given_job_id(job), uid=uid, as_of=AsOf(**checkpoint))

    def read_snapshot(
        self,
        job: str,
        name: str,
        *,
        uid: str | None = None,
        scope: str | None = None,
        columns: Sequence[str] | None = None,
        storage_conn_id: str | None = None,
        **checkpoint: Unpack[CheckpointChoice],
    ) -> Any:
        """
        Return a named DataFrame snapshot of a job as a ``pyarrow.RecordBatchReader``, which reads lazily.

        :param job: Name or id of the job.
        :param uid: Uid of the operator, required if several operators have a snapshot of this name.
        :param scope: Items of the loops around the snapshot, such as ``days[2026-01-01]``, or ``""`` for none; required
            if several scopes have the name.
        :param columns: Names of the columns to read, by default all.
        :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck]
            storage_conn_id``.
        :param checkpoint: ``checkpoint_id``, ``pointer`` or ``at``; by default the latest checkpoint of each operator.
        :raises CheckpointNotFoundError: if there is no such job, operator or checkpoint.
        :raises UnknownStateError: if there is no such snapshot; the message lists the snapshots.
        :raises InvalidConfigurationError: if several operators or scopes have the name, or a column is unknown.
        :raises UnsupportedStateError: if only Spark reads a column, also while reading.
        :raises CorruptStateError: if a file of the snapshot was changed, also while reading.
        :raises StorageError: if the storage fails, also while reading.
        """
        from airflow_provider_statecheck.gateway.time_travel import AsOf
        from airflow_provider_statecheck.queryable.job_contents import snapshot_in

        def verified(stages: tuple[StageContents, ...]) -> Any:
            return snapshot_in(stages, name, scope, columns)[1].record_batches()

        reads = self._contents(storage_conn_id)
        return reads.read(given_job_id(job), verified, uid=uid, as_of=AsOf(**checkpoint))

    def _contents(self, storage_conn_id: str | None) -> JobContents:
        from airflow_provider_statecheck.queryable.job_contents import JobContents

        return JobContents(self.get_conn(), storage_opener(storage_conn_id))


def _job_here(job: str) -> str:
    is_id = given_job_id(job) == job
    return job if is_id or is_test_job(job) else job_name(job, is_test=is_test_run())


class _Program:
    """The task that leads a coordinator, which fails with its job and with its operators."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def fail_job(self, cause: Exception) -> None:
        # An operator that declines while it is triggered does not pass the error on.
        self.failure = self.failure or cause
        raise cause

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        self.fail_job(cause)

    def fail_task(self, task: ExecutionTask, error: Exception) -> None:
        # Called in the thread of the executor.
        self.failure = self.failure or error
