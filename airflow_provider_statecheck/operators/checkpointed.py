"""Base of the checkpointed operators: arguments, identity, registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_test_job, job_name, uid_with_key, uids_before
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    InvalidPointerError,
    LocationNotAllowedError,
    NoRestorableCheckpointError,
    PointerNotFoundError,
    RunSupersededError,
    SnapshotClaimedError,
    SourceChangedError,
    StateMigrationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.operators.links import CheckpointsLink, push_link

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt, RestoreSource
    from airflow_provider_statecheck.checkpoint.properties import RestoreMode
    from airflow_provider_statecheck.checkpoint.records import OnOverlap
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.spark.driver.handover import DriverSettings
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def run_key_of(context: Mapping[str, Any]) -> str:
    """Return what names the run: its logical date where it has one, else its run id."""
    dag_run = context["dag_run"]
    logical_date = getattr(dag_run, "logical_date", None)
    return logical_date.isoformat() if logical_date is not None else str(dag_run.run_id)


def job_name_of(context: Mapping[str, Any], job: str | None, *, is_test: bool) -> str:
    """
    Return the job's name.

    :param job: The user's own name; by default state lives with the run.
    :param is_test: Whether the task runs with Airflow's database open, where it must not touch the real job.
    :raises InvalidConfigurationError: for a real job whose name is one of the jobs of test runs.
    """
    name = job or f"{context['ti'].dag_id}/{run_key_of(context)}"
    if is_test_job(name) and not is_test:
        raise InvalidConfigurationError(
            f"Expected a job whose name does not begin with {TEST_NAMESPACE!r}, found {name!r}; such jobs are those of test "
            f"runs, which are removed without being named. Give the task another job=."
        )
    return job_name(name, is_test=is_test)


def uid_of(context: Mapping[str, Any], uid: str | None, map_key: str | None) -> str:
    """
    Return the operator's uid.

    :param uid: The user's own; by default the task id.
    :param map_key: What tells the instances of a mapped task apart whatever their order is.
    :raises InvalidConfigurationError: for a mapped task without a key.
    """
    ti = context["ti"]
    if getattr(ti, "map_index", -1) >= 0 and not map_key:
        raise InvalidConfigurationError(
            f"Expected map_key for the mapped task {ti.task_id!r}, found none; give each instance a key of its content, "
            f"for its index would be another item's after the list has changed."
        )
    return uid_with_key(uid or str(ti.task_id), map_key)


def owner_of(context: Mapping[str, Any], map_key: str | None) -> AttemptOwner:
    """Return who runs this try."""
    ti, dag_run = context["ti"], context["dag_run"]
    map_index = getattr(ti, "map_index", -1)
    return AttemptOwner(
        logical_task=f"{ti.dag_id}/{ti.task_id}" + (f"[{map_key}]" if map_key else ""),
        run_key=run_key_of(context),
        run_id=str(dag_run.run_id),
        # A clear raises max_tries or, for a running task, the run's clear_number; a retry changes neither.
        clear_marker=f"{getattr(ti, 'max_tries', 0)}/{getattr(dag_run, 'clear_number', 0)}",
        label=f"task {ti.dag_id}.{ti.task_id} of run {dag_run.run_id}, try {ti.try_number}",
        airflow=(
            ("dag_id", str(ti.dag_id)),
            ("run_id", str(dag_run.run_id)),
            ("task_id", str(ti.task_id)),
            ("map_index", str(map_index)),
        ),
    )


def refuse_shared_uid(task_id: str, tasks: Sequence[Any]) -> None:
    """
    Compare a task with the others of its Dag, by their arguments before templates are rendered.

    :param task_id: The task that starts.
    :param tasks: All tasks of the Dag.
    :raises InvalidConfigurationError: if another one has the same job, uid and map key.
    """
    identities = {task.task_id: _identity(task) for task in tasks if isinstance(task, CheckpointedOperator)}
    mine = identities.get(task_id)
    for other_id, identity in identities.items():
        if mine is not None and other_id != task_id and identity == mine:
            raise InvalidConfigurationError(
                f"Expected every task of a job to have a uid of its own, found {mine[1]!r} at both {task_id!r} and "
                f"{other_id!r} in the job {mine[0] or 'of the run'!r}; give one of them another uid."
            )


def uids_by_task(tasks: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """
    Return which uids the checkpointed tasks of a Dag have and had, by task id and without map keys.

    A task whose uid is known only when it runs has none here.

    :param tasks: All tasks of the Dag.
    """
    return {task.task_id: _uids(task.task_id, _arguments(task)) for task in tasks if _is_checkpointed(task)}


def former_uids(uid: str, renamed_uids: Mapping[str, str], map_key: str | None = None) -> tuple[str, ...]:
    """
    Return the uids that an operator had before.

    :param uid: The operator's uid without a map key.
    :param renamed_uids: New uids by old ones.
    :param map_key: What tells the instances of a mapped task apart.
    """
    of_task = tuple(uid_with_key(old, map_key) for old in uids_before(uid, renamed_uids))
    of_instance = uids_before(uid_with_key(uid, map_key), renamed_uids) if map_key else ()
    return (*of_task, *of_instance)


def _is_checkpointed(task: Any) -> bool:

    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return issubclass(kind, CheckpointedOperator)


def _arguments(task: Any) -> Mapping[str, Any]:
    if not isinstance(task, MappedOperator):
        return {"uid": task.declared_uid, "renamed_uids": task.renamed_uids}
    expanded = task.expand_input.value
    # Each instance gets what it is expanded with; a list of keyword arguments may name anything.
    own = {"uid": None} if isinstance(expanded, Mapping) and "uid" not in expanded else {"uid": expanded}
    return {**own, **task.partial_kwargs}


def _uids(task_id: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    uid = arguments["uid"] or task_id
    if not isinstance(uid, str) or "{{" in uid or "{%" in uid:
        return ()
    return (uid, *former_uids(uid, arguments.get("renamed_uids") or {}))


def _identity(task: Any) -> tuple[str | None, str, str | None]:
    return task.job, task.uid or task.task_id, task.map_key


_MILLISECOND = timedelta(milliseconds=1)
A_RETRY_CANNOT_HELP = (
    InvalidConfigurationError,
    LocationNotAllowedError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidPointerError,
    PointerNotFoundError,
    NoRestorableCheckpointError,
    ConcurrentAttemptError,
    RunSupersededError,
    SnapshotClaimedError,
    SourceChangedError,
    StateMigrationError,
    StoppedWithSavepointError,
)


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """What a try needs to register."""

    storage: CheckpointStorage
    registration: RegisterAttempt
    driver: DriverSettings
    on_overlap: OnOverlap


def prepare_stage(task: CheckpointedOperator, context: Mapping[str, Any]) -> PreparedStage:
    """
    Work out where the bytes go and who asks, and make the link to the job's page work.

    :raises InvalidConfigurationError: for a setting out of range, a mapped task without a key, or a fork of no job.
    """
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.hooks.storage import open_storage

    settings = StatecheckSettings.from_airflow(
        checkpoint_dir=task.checkpoint_dir,
        storage_conn_id=task.storage_conn_id,
        num_retained=task.num_retained,
        retained_runs=task.retained_runs,
        checkpoint_timeout_seconds=task.checkpoint_timeout_seconds,
        tolerable_failed_checkpoints=task.tolerable_failed_checkpoints,
        overhead_budget=task.overhead_budget,
        checkpoint_interval=task.checkpoint_interval,
        min_pause=task.min_pause,
        externalized_checkpoint_retention=task.externalized_checkpoint_retention,
        savepoint_dir=task.savepoint_dir,
        data_inline_threshold=task.data_inline_threshold,
        allowed_locations=task.allowed_locations,
        on_clear=task.on_clear,
        on_overlap=task.on_overlap,
    )
    storage = open_storage(settings.checkpoint_dir, settings.storage_conn_id)
    storage = storage.allowing(settings.savepoint_dir, locations=settings.allowed_locations)
    registration = _begun_elsewhere(task, storage, _registration(task, context, settings, storage.base_uri))
    push_link(task, context, registration.job_name)
    driver = _driver_settings(task, context, settings, storage)
    return PreparedStage(storage, registration, driver, settings.on_overlap)


def _begun_elsewhere(
    task: CheckpointedOperator, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    mode = _claim_mode(task.claim_mode)
    if task.from_checkpoint:
        return _fork(task, task.from_checkpoint, storage, registration)
    if task.fork:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint with fork={task.fork!r}, found none; say where it begins."
        )
    if not task.from_savepoint:
        return registration
    return replace(registration, restore_from=_savepoint(task, task.from_savepoint, storage, registration.uid, mode))


def _savepoint(
    task: CheckpointedOperator, pointer: str, storage: CheckpointStorage, uid: str, mode: RestoreMode
) -> RestoreSource | None:
    from airflow_provider_statecheck.storage.pointers import find_source

    return find_source(
        storage,
        pointer,
        uid=uid,
        mode=mode,
        renamed_uids=task.renamed_uids or {},
        allow_non_restored_state=task.allow_non_restored_state,
    )


def _fork(
    task: CheckpointedOperator, begins_at: str, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    from airflow_provider_statecheck.hooks.transport import airflow_gateway
    from airflow_provider_statecheck.spark.time_travel import find_fork_source, fork_name

    if not task.job or task.from_savepoint:
        raise InvalidConfigurationError(
            "Expected from_checkpoint with job=, whose checkpoint it is, and without from_savepoint, found "
            f"{'both' if task.job else 'no job'}."
        )
    source = find_fork_source(
        airflow_gateway(),
        storage,
        registration.job_name,
        begins_at,
        uid=registration.uid,
        renamed_uids=task.renamed_uids or {},
        allow_non_restored_state=task.allow_non_restored_state,
    )
    name = fork_name(registration.job_name, task.fork or registration.owner.run_key)
    return replace(registration, job_name=name, restore_from=source)


def _claim_mode(given: str) -> RestoreMode:
    from airflow_provider_statecheck.checkpoint.properties import RestoreMode

    try:
        return RestoreMode(given.lower())
    except ValueError as error:
        modes = ", ".join(mode.value for mode in RestoreMode)
        raise InvalidConfigurationError(f"Expected claim_mode to be one of {modes}, found {given!r}.") from error


def _driver_settings(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage: CheckpointStorage
) -> DriverSettings:
    from airflow_provider_statecheck.spark.driver.handover import DriverSettings

    return DriverSettings(
        tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
        overhead_budget=settings.overhead_budget,
        checkpoint_interval=_interval_text(settings.checkpoint_interval),
        min_pause_ms=settings.min_pause // _MILLISECOND,
        data_inline_threshold=settings.data_inline_threshold,
        savepoint_dir=settings.savepoint_dir,
        allowed_locations=settings.allowed_locations,
        state_config=settings.state_config,
        storage_options=dict(storage.options),
        logical_date=context["dag_run"].logical_date,
        parallelism=getattr(task, "parallelism", None),
        renamed_uids=dict(task.renamed_uids or {}),
        allow_non_restored_state=task.allow_non_restored_state,
    )


def _interval_text(interval: timedelta | str | None) -> str | None:
    return str(interval // _MILLISECOND) if isinstance(interval, timedelta) else interval


def _registration(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage_base: str
) -> RegisterAttempt:
    from airflow_provider_statecheck.checkpoint.ids import new_key
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
    from airflow_provider_statecheck.hooks.transport import is_orm_open

    dag = task.get_dag()
    return RegisterAttempt(
        job_name=job_name_of(context, task.job, is_test=is_orm_open()),
        uid=uid_of(context, task.uid, task.map_key),
        attempt_key=new_key(),
        owner=owner_of(context, task.map_key),
        storage_base=storage_base,
        on_clear=settings.on_clear,
        num_retained=settings.num_retained,
        retained_runs=settings.retained_runs,
        checkpoint_timeout_seconds=settings.checkpoint_timeout_seconds,
        retention=settings.externalized_checkpoint_retention.retention_policy,
        former_uids=former_uids(task.uid or task.task_id, task.renamed_uids or {}, task.map_key),
        dag_uids=uids_by_task([task] if dag is None else dag.tasks),
        allow_non_restored_state=task.allow_non_restored_state,
    )


class CheckpointedOperator(BaseOperator):
    """
    Base of the operators whose retry goes on from the last completed checkpoint.

    Arguments that are not given come from the section ``[statecheck]`` of Airflow's configuration.

    :param job: Name of the unit of recovery. By default each Dag run has its own job. (templated)
    :param uid: Name of this stage within the job, which owns its state and output. The default is the task id. (templated)
    :param map_key: For a mapped task: a stable name of the instance, independent of the order of instances. (templated)
    :param checkpoint_dir: Directory for checkpoints: any fsspec URI that the Spark driver can reach. (templated)
    :param storage_conn_id: Airflow connection with the credentials for ``checkpoint_dir``. Without it, every process uses the
        credentials of its environment. (templated)
    :param num_retained: Maximum number of completed checkpoints to retain.
    :param retained_runs: Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``. As many
        runs can be run again.
    :param checkpoint_timeout_seconds: Maximum time from the start of a checkpoint to its acknowledgement.
    :param tolerable_failed_checkpoints: Number of consecutive checkpoint failures that the task tolerates before it fails;
        ``-1`` for no limit.
    :param overhead_budget: Maximum share of the stage's time that checkpointing may take, above 0 and up to 1. Beyond it,
        optional checkpoints and snapshots are delayed.
    :param checkpoint_interval: Interval of periodic checkpoints, such as ``5 min``. A bare number is milliseconds; ``auto``
        derives the interval from the cost of checkpoints and the failures of the job.
    :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint of a loop.
    :param externalized_checkpoint_retention: Retention of checkpoints after the end of the run:
        ``RETAIN_ON_CANCELLATION``, ``DELETE_ON_CANCELLATION`` or ``NO_EXTERNALIZED_CHECKPOINTS``.
    :param savepoint_dir: Default directory for savepoints. (templated)
    :param from_savepoint: Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it has no
        checkpoint of its own to restore. (templated)
    :param from_checkpoint: For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or ``before:<run>``
        with a logical date or run id, or a pointer. (templated)
    :param fork: Name of the fork, which is the job ``<job>@<fork>``. The default is the logical date or run id. (templated)
    :param claim_mode: Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner keeps it,
        with ``claim`` this job takes it over.
    :param renamed_uids: For a stage whose uid changed: the old uid and the new one. The stage takes over the operator of the
        old uid in its job, and a savepoint of it. Keep the argument as long as the job exists.
    :param allow_non_restored_state: Start with empty state if the savepoint belongs to another stage, or if the stage is new
        in a job from which another stage was removed.
    :param data_inline_threshold: Maximum size of a small value that is stored in the metadata, such as ``20 KiB``.
    :param allowed_locations: Further URIs, such as ``s3://archive``, where checkpoints and savepoints may reference files. The
        locations of ``checkpoint_dir``, ``savepoint_dir`` and the given pointers are always allowed.
    :param on_clear: Behaviour of a cleared task: ``resume_unchanged``, ``resume`` or ``restart``.
    :param on_overlap: Behaviour while the same operator of the job still runs for another run: ``fail`` or ``wait``.
    """

    checkpoint_template_fields: Sequence[str] = (
        "job",
        "uid",
        "map_key",
        "checkpoint_dir",
        "storage_conn_id",
        "savepoint_dir",
        "from_savepoint",
        "from_checkpoint",
        "fork",
    )
    operator_extra_links = (CheckpointsLink(),)

    unused_arguments: Sequence[str] = ()
    """Arguments that this operator does not act on and refuses."""
    kept: str | None = None
    """What a failed try kept, for the last line of its log."""
    checkpoints_url: str | None = None
    """The page of the job, once the task has begun."""
    declared_uid: str | None = None
    """The uid before its template was rendered."""

    def __init__(
        self,
        *,
        job: str | None = None,
        uid: str | None = None,
        map_key: str | None = None,
        checkpoint_dir: str | None = None,
        storage_conn_id: str | None = None,
        num_retained: int | None = None,
        retained_runs: int | None = None,
        checkpoint_timeout_seconds: float | None = None,
        tolerable_failed_checkpoints: int | None = None,
        overhead_budget: float | None = None,
        checkpoint_interval: timedelta | str | int | None = None,
        min_pause: timedelta | str | int | None = None,
        externalized_checkpoint_retention: str | None = None,
        savepoint_dir: str | None = None,
        from_savepoint: str | None = None,
        from_checkpoint: str | None = None,
        fork: str | None = None,
        claim_mode: str = "no_claim",
        renamed_uids: Mapping[str, str] | None = None,
        allow_non_restored_state: bool = False,
        data_inline_threshold: str | int | None = None,
        allowed_locations: Sequence[str] | str | None = None,
        on_clear: str | None = None,
        on_overlap: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.uid = uid
        self.declared_uid = uid
        self.map_key = map_key
        self.checkpoint_dir = checkpoint_dir
        self.storage_conn_id = storage_conn_id
        self.num_retained = num_retained
        self.retained_runs = retained_runs
        self.checkpoint_timeout_seconds = checkpoint_timeout_seconds
        self.tolerable_failed_checkpoints = tolerable_failed_checkpoints
        self.overhead_budget = overhead_budget
        self.checkpoint_interval = checkpoint_interval
        self.min_pause = min_pause
        self.externalized_checkpoint_retention = externalized_checkpoint_retention
        self.savepoint_dir = savepoint_dir
        self.from_savepoint = from_savepoint
        self.from_checkpoint = from_checkpoint
        self.fork = fork
        self.claim_mode = claim_mode
        self.renamed_uids = renamed_uids
        self.allow_non_restored_state = allow_non_restored_state
        self.data_inline_threshold = data_inline_threshold
        self.allowed_locations = allowed_locations
        self.on_clear = on_clear
        self.on_overlap = on_overlap

    def prepare(self, context: Mapping[str, Any]) -> PreparedStage:
        """
        Work out where the bytes go and who asks; nothing is started yet.

        :raises InvalidConfigurationError: for a setting out of range, one that this operator does not act on, a mapped task
            without a key, or a uid that another task of the Dag has too.
        """
        for name in self.unused_arguments:
            if getattr(self, name) is not None:
                raise InvalidConfigurationError(
                    f"Expected arguments that {type(self).__name__} acts on, found {name}; leave it out.", key=name
                )
        dag = self.get_dag()
        if dag is not None:
            refuse_shared_uid(self.task_id, list(dag.tasks))
        return prepare_stage(self, context)
