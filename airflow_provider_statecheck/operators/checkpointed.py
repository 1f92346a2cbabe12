"""
Base class of the checkpointed Airflow operators: arguments, job name, uid and registration.

:class:`CheckpointedOperator` holds the arguments. :func:`prepare_stage` resolves them for a try: the settings, the
    storage,
the job and uid of the stage, and the owner of the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_statecheck.checkpoint.declared_uids import (
    declared_uids,
    former_uids,
    job_argument,
    mapped_arguments,
    may_be_in_job,
)
from airflow_provider_statecheck.checkpoint.ids import (
    is_given,
    is_test_job,
    key_text,
    operator_id_of,
    require_not_missing,
    uid_with_key,
)
from airflow_provider_statecheck.checkpoint.masking import remember_secrets, secrets_in_settings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink, push_link
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt, RestoreSource
    from airflow_provider_statecheck.checkpoint.properties import RestoreMode
    from airflow_provider_statecheck.checkpoint.records import AttemptOwner, OnOverlap
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


_SETTINGS = ("conf", "config_kwargs", "env_vars")
"""Arguments of Airflow's Spark operators with settings of Spark, or variables of an environment."""


class StageTerminatedError(BaseException):
    """
    The task was terminated before its stage had ended.

    As Airflow's own errors of this kind, it is no ``Exception``: the signal may arrive anywhere, also in a log handler
    or in code of users that goes on after any exception.
    """


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """Storage, registration and driver settings of a try."""

    storage: CheckpointStorage
    registration: RegisterAttempt
    driver: DriverSettings
    on_overlap: OnOverlap


class CheckpointedOperator(BaseOperator):
    """
    Base of the Airflow operators whose retry resumes from the last completed checkpoint.

    The defaults of most arguments are in the section ``[statecheck]`` of Airflow's configuration.

    :param job: Name of the job, the unit of recovery. By default each Dag run has its own job. (templated)
    :param uid: Name of this stage within the job, which owns its state and output. The default is the task id.
        (templated)
    :param map_key: For a mapped task: a stable name of the instance, independent of the order of instances. (templated)
    :param checkpoint_dir: Directory for checkpoints: a path or any fsspec URI that the Spark driver can reach.
        (templated)
    :param storage_conn_id: Airflow connection with the credentials for ``checkpoint_dir``. Without it, every process
        uses the credentials of its environment. (templated)
    :param num_retained: Maximum number of completed checkpoints to retain, at least 1.
    :param retained_runs: Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``, for
        a job that continues from run to run. As many runs can be run again.
    :param checkpoint_timeout_seconds: Maximum time from the start of a checkpoint to its acknowledgement. The
        unit is seconds.
    :param tolerable_failed_checkpoints: Number of consecutive checkpoint failures that a stage tolerates before it
        fails; ``-1`` for no limit.
    :param overhead_budget: Maximum share of a stage's time that checkpointing may take, above 0 and up to 1. Beyond it,
        optional checkpoints and snapshots are delayed. Without a value nothing is delayed.
    :param checkpoint_interval: Interval of periodic checkpoints, or ``auto``, which derives it from the cost of
        checkpoints and the failures of the job. Without a value, a loop takes a checkpoint after its configured number
        of items, and a stage with state after each increment. A bare number is milliseconds; text has a unit, such as
        ``5 min``. (templated)
    :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint. A bare number is
        milliseconds; text has a unit, such as ``5 min``.
    :param externalized_checkpoint_retention: Retention of checkpoints after the end of a run:
        ``RETAIN_ON_CANCELLATION`` retains them after a failure and if a user marks the run as failed,
        ``DELETE_ON_CANCELLATION`` after a failure only, ``NO_EXTERNALIZED_CHECKPOINTS`` never. A job with a fixed name
        always retains them.
    :param savepoint_dir: Default directory for savepoints: any fsspec URI. A request can name another one. (templated)
    :param from_savepoint: Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it has
        no checkpoint of its own to restore; of a savepoint of a whole job, from the member with its uid. (templated)
    :param from_checkpoint: For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or
        ``before:<run>``, or a pointer. A run is named by its logical date or run id. (templated)
    :param fork: Name of the fork, which is the job ``<job>@<fork>``. The default is the logical date, else the
        partition, else the run id. (templated)
    :param claim_mode: Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner
        keeps it, with ``claim`` this job takes it over.
    :param renamed_uids: For a stage whose uid changed: the old uid and the new one. The stage takes over the operator
        of the old uid in its job, and a savepoint of it. Keep the argument as long as the job exists. (templated)
    :param allow_non_restored_state: Start with empty state if the savepoint belongs to other stages, or if the stage is
        new in a job from which another stage was removed.
    :param savepoint_at_end: Whether to take a savepoint when the stage has finished; needs a directory for savepoints.
        (templated)
    :param data_inline_threshold: Maximum size of a small value of a stage that is stored in the metadata of a
        checkpoint instead of a separate file, up to 1 MiB. A bare number is bytes; text has a unit: ``KiB``, ``MiB``,
        ``KB`` or ``MB``.
    :param allowed_locations: URIs where checkpoints and savepoints may reference files, in addition to the bucket or
        host (for local paths the directory) of ``checkpoint_dir``, ``savepoint_dir`` and a given pointer: a list, or
        text with commas. A reference to any other location is rejected before it is opened.
    :param on_clear: Behaviour of a cleared task: ``resume_unchanged`` keeps the steps whose code did not change (after
        a success, its run starts again), ``resume`` keeps every step, ``restart`` starts its run again.
    :param on_overlap: Behaviour while the same operator of the job still runs for another run: ``fail`` at once, or
        ``wait`` for its end.
    """

    checkpoint_template_fields: Sequence[str] = (
        "job",
        "uid",
        "map_key",
        "renamed_uids",
        "checkpoint_dir",
        "storage_conn_id",
        "checkpoint_interval",
        "savepoint_dir",
        "from_savepoint",
        "from_checkpoint",
        "fork",
        "savepoint_at_end",
    )
    operator_extra_links: Any = (CheckpointsLink(),)

    unused_arguments: Sequence[str] = ()
    """Arguments that this Airflow operator does not support and rejects."""
    kept: str | None = None
    """Newest retained checkpoint of a failed try, for the last line of its log."""
    checkpoints_url: str | None = None
    """URL of the page of the task's checkpoints, set when the task starts."""
    declared_uid: str | None = None
    """Uid before template rendering."""
    _is_interruptible = False

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
        savepoint_at_end: bool | str = False,
        data_inline_threshold: str | int | None = None,
        allowed_locations: Sequence[str] | str | None = None,
        on_clear: str | None = None,
        on_overlap: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        setattr(self, job_argument(self.template_fields), job)
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
        self.savepoint_at_end = savepoint_at_end
        self.data_inline_threshold = data_inline_threshold
        self.allowed_locations = allowed_locations
        self.on_clear = on_clear
        self.on_overlap = on_overlap

    @override
    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        super()._do_render_template_fields(parent, *args, **kwargs)
        if parent is self:
            # Airflow stores and shows the rendered fields right after this, without what its masker knows.
            settings = (getattr(self, name, None) for name in _SETTINGS)
            remember_secrets(
                each for given in settings if isinstance(given, dict) for each in secrets_in_settings(given)
            )

    def prepare(self, context: Mapping[str, Any]) -> PreparedStage:
        """
        Resolve the storage, the registration and the driver settings of a try without starting anything.

        :raises InvalidConfigurationError: if a setting is out of range or not supported by this class, a mapped task
            has no key, or another task of the Dag has the same uid.
        """
        for name in self.unused_arguments:
            if getattr(self, name) is not None:
                raise InvalidConfigurationError(
                    f"Expected arguments that {type(self).__name__} supports, found {name}; remove it.", key=name
                )
        dag = self.get_dag()
        if dag is not None:
            refuse_shared_uid(self.task_id, list(dag.tasks))
        return prepare_stage(self, context)

    def fail_after_end(self, error: BaseException) -> None:
        """
        Close the attempt as failed because the task failed after the end of its stage; Airflow's listener calls it.

        :param error: Error of the task, for instance of a callback or of its return value.
        """

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let :meth:`_interrupt` end the block, until the attempt is closed."""
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def _interrupt(self) -> None:
        """Raise an error once, in the main thread, whose signal handler calls this."""
        if self._is_interruptible:
            self._is_interruptible = False
            raise StageTerminatedError(
                "The task was terminated; its attempt is closed, and a retry resumes from the last checkpoint."
            )


def declared_job(task: CheckpointedOperator) -> str | None:
    """Return the name of the job as the task has it, ``None`` for the job of the run."""
    job: str | None = getattr(task, job_argument(task.template_fields))
    return job


def prepare_stage(task: CheckpointedOperator, context: Mapping[str, Any]) -> PreparedStage:
    """
    Resolve the storage, the registration and the driver settings of a try, and set the link to its page.

    :raises InvalidConfigurationError: if a setting is out of range, a mapped task has no key, or a fork has no job.
    """
    from airflow_provider_statecheck.configuration import StatecheckSettings
    from airflow_provider_statecheck.hooks.connection import open_storage

    settings = StatecheckSettings.from_airflow(**{name: getattr(task, name) for name in StatecheckSettings.names()})
    storage = open_storage(settings.checkpoint_dir, settings.storage_conn_id)
    storage = storage.allowing(settings.savepoint_dir, locations=settings.allowed_locations)
    registration = _with_restore_source(task, storage, _registration(task, context, settings, storage.base_uri))
    push_link(task, context)
    driver = _driver_settings(task, context, settings, storage)
    return PreparedStage(storage, registration, driver, settings.on_overlap)


def _with_restore_source(
    task: CheckpointedOperator, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    mode = _claim_mode(task.claim_mode, is_test=is_test_job(registration.job_name))
    if is_given(task.from_checkpoint):
        return _fork(task, task.from_checkpoint, storage, registration)
    if is_given(task.fork):
        raise InvalidConfigurationError(
            f"Expected from_checkpoint with fork={task.fork!r}, found none; name the checkpoint to start from."
        )
    if is_given(task.from_savepoint):
        source = _savepoint(task, task.from_savepoint, storage, registration.uid, mode)
        return replace(registration, restore_from=source)
    return registration


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
    task: CheckpointedOperator, fork_point: str, storage: CheckpointStorage, registration: RegisterAttempt
) -> RegisterAttempt:
    from airflow_provider_statecheck.gateway.time_travel import find_fork_source, fork_name
    from airflow_provider_statecheck.hooks.transport import airflow_gateway

    if not is_given(declared_job(task)) or is_given(task.from_savepoint):
        raise InvalidConfigurationError(
            "Expected from_checkpoint with job=, the job of the checkpoint, and without from_savepoint, found "
            f"{'both' if is_given(declared_job(task)) else 'no job'}."
        )
    require_not_missing("fork", task.fork)
    source = find_fork_source(
        airflow_gateway(),
        storage,
        registration.job_name,
        fork_point,
        uid=registration.uid,
        renamed_uids=task.renamed_uids or {},
        allow_non_restored_state=task.allow_non_restored_state,
    )
    fork = str(task.fork) if is_given(task.fork) else registration.owner.run_key
    name = fork_name(registration.job_name, fork)
    return replace(registration, job_name=name, restore_from=source)


def _claim_mode(value: str, *, is_test: bool) -> RestoreMode:
    from airflow_provider_statecheck.checkpoint.properties import RestoreMode
    from airflow_provider_statecheck.spark.driver.settings import OPTIONS

    mode: RestoreMode = OPTIONS["claim_mode"].checked("claim_mode", value)
    # The job of a test run is pruned with all that it owns, and the real job could not start from the savepoint.
    return RestoreMode.NO_CLAIM if is_test else mode


def _driver_settings(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage: CheckpointStorage
) -> DriverSettings:
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings, StageSettings

    own = {name: getattr(task, name, None) for name in ("parallelism", "allow_non_restored_state")}
    return DriverSettings.of(
        asdict(settings) | own | {"renamed_uids": task.renamed_uids or {}},
        StageSettings(
            logical_date=context["dag_run"].logical_date,
            state_config=settings.state_config,
            storage_options=dict(storage.options),
        ),
    )


def _registration(
    task: CheckpointedOperator, context: Mapping[str, Any], settings: StatecheckSettings, storage_base: str
) -> RegisterAttempt:
    from airflow_provider_statecheck.checkpoint.ids import new_key
    from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
    from airflow_provider_statecheck.hooks.identity import job_name_of, owner_of
    from airflow_provider_statecheck.hooks.transport import is_orm_open

    dag, map_key = task.get_dag(), key_text(task.map_key)
    job_name = job_name_of(context, declared_job(task), is_test=is_orm_open())
    return RegisterAttempt(
        job_name=job_name,
        uid=uid_of(context, task.uid, map_key),
        attempt_key=new_key(),
        owner=_marked(context, owner_of(context, map_key)),
        storage_base=storage_base,
        on_clear=settings.on_clear,
        num_retained=settings.num_retained,
        retained_runs=settings.retained_runs,
        checkpoint_timeout_seconds=settings.checkpoint_timeout_seconds,
        retention=settings.externalized_checkpoint_retention.retention_policy,
        former_uids=former_uids(_task_uid(task.task_id, task.uid), task.renamed_uids or {}, map_key),
        dag_uids=uids_by_task(task, [task] if dag is None else dag.tasks, job_name),
        allow_non_restored_state=task.allow_non_restored_state,
        savepoint_at_end=_savepoint_at_end(task, settings),
    )


def _marked(context: Mapping[str, Any], owner: AttemptOwner) -> AttemptOwner:
    from airflow_provider_statecheck.hooks.task_state import mark_task_state

    return replace(owner, task_state=mark_task_state(context, owner.clear_marker))


def _savepoint_at_end(task: CheckpointedOperator, settings: StatecheckSettings) -> bool:
    from airflow_provider_statecheck.spark.driver.settings import OPTIONS, require_savepoint_dir

    is_wanted: bool = OPTIONS["savepoint_at_end"].checked("savepoint_at_end", task.savepoint_at_end)
    require_savepoint_dir(is_wanted, settings.savepoint_dir)
    return is_wanted


def uid_of(context: Mapping[str, Any], uid: str | None, map_key: str | None) -> str:
    """
    Return the uid of the operator.

    :param uid: Explicit uid; by default the task id.
    :param map_key: Key of the instance of a mapped task, independent of the order of instances.
    :raises InvalidConfigurationError: if a mapped task has no key, or the uid is invalid.
    """
    ti = context["ti"]
    if getattr(ti, "map_index", -1) >= 0 and not map_key:
        raise InvalidConfigurationError(
            f"Expected map_key for the mapped task {ti.task_id!r}, found none; derive a key from the content of each "
            f"instance, because its index changes with the list."
        )
    require_not_missing("uid", uid)
    task_uid = _task_uid(str(ti.task_id), uid)
    operator_id_of(task_uid)  # rejects other values than texts before the key is added
    return uid_with_key(task_uid, map_key)


def _task_uid(task_id: str, uid: str | None) -> str:
    return uid if is_given(uid) else task_id


def refuse_shared_uid(task_id: str, tasks: Sequence[Any]) -> None:
    """
    Require that no other task of the Dag has the same job, uid and map key, before templates are rendered.

    :param task_id: Id of the starting task.
    :raises InvalidConfigurationError: if another task has the same job, uid and map key.
    """
    identities = {task.task_id: _identity(task) for task in tasks if isinstance(task, CheckpointedOperator)}
    identity = identities.get(task_id)
    for other_id, other in identities.items():
        if identity is not None and other_id != task_id and other == identity:
            raise InvalidConfigurationError(
                f"Expected a unique uid for every task of a job, found {identity[1]!r} at both {task_id!r} and "
                f"{other_id!r} in the job {identity[0] or 'of the run'!r}; give one of them another uid."
            )


def uids_by_task(task: Any, tasks: Iterable[Any], job_name: str) -> dict[str, tuple[str, ...]]:
    """
    Return the current and former uids of the checkpointed tasks of a Dag in a job by task id, without map keys.

    A task with a templated or expanded uid has no entry in its tuple, as its uid is unknown before it runs.

    :param task: Task that runs, whose templates are rendered.
    :param tasks: All tasks of its Dag.
    """
    declared = {each.task_id: _arguments(each) for each in tasks if _is_checkpointed(each)}
    others = {
        i: a for i, a in declared.items() if i == task.task_id or may_be_in_job(a.get("job"), task.dag_id, job_name)
    }
    return {task_id: declared_uids(task_id, arguments) for task_id, arguments in others.items()}


def _is_checkpointed(task: Any) -> bool:
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return issubclass(kind, CheckpointedOperator)


def _arguments(task: Any) -> Mapping[str, Any]:
    if not isinstance(task, MappedOperator):
        return {"job": declared_job(task), "uid": task.declared_uid, "renamed_uids": task.renamed_uids}
    return mapped_arguments(task.partial_kwargs, task.expand_input.value, job_argument(task.template_fields))


def _identity(task: Any) -> tuple[str | None, str, str | None]:
    return declared_job(task), task.uid or task.task_id, task.map_key
