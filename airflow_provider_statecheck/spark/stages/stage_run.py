"""
One attempt of a stage: restore, plan, run increment by increment, finish.

The restore is confirmed to the coordinator only after the restored state has been checked against the functions. The
sink is opened after that, and commits the committables of the restored checkpoint first.

:func:`main` is the program of a driver that ``spark-submit`` starts for a stage. The Airflow operator passes the
location of the stage as the first argument and the attempt through the handover.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.fencing import logical_date_of
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.states.handles import default_max_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StageExitError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_interval import Pace, pace_of
from airflow_provider_statecheck.spark.connectors.source import SizeUnit
from airflow_provider_statecheck.spark.driver.application import STAGE_ARGUMENT
from airflow_provider_statecheck.spark.driver.attempts import begin_submitted, open_attempt
from airflow_provider_statecheck.spark.driver.mailbox import find_handover, taken_argument
from airflow_provider_statecheck.spark.driver.packages import OF_STAGES, check_driver_packages
from airflow_provider_statecheck.spark.driver.session import TaggedJobs, run_interruptibly, tasks_at_once
from airflow_provider_statecheck.spark.driver.settings import DriverSettings, StageSettings
from airflow_provider_statecheck.spark.endings import message_of
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts
from airflow_provider_statecheck.spark.stages.collecting import read_in_turn
from airflow_provider_statecheck.spark.stages.endpoints import Endpoints
from airflow_provider_statecheck.spark.stages.executor.node_run import SubtaskContext
from airflow_provider_statecheck.spark.stages.increment_jobs import Combining, IncrementTasks
from airflow_provider_statecheck.spark.stages.increment_loop import IncrementLoop
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex, StagePlanner, load_stage, vertices_of
from airflow_provider_statecheck.spark.stages.preparation import (
    make_importable,
    max_parallelism_advice,
    merged_schemas,
    probe_schemas,
    require_same_output,
    stage_settings_applied,
    subtasks_within,
    with_former_names,
)
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_checkpoints import source_summary
from airflow_provider_statecheck.spark.stages.stage_state import (
    RestoredStageState,
    StageStates,
)
from airflow_provider_statecheck.spark.stages.starting import StageStart, start_of
from airflow_provider_statecheck.spark.status_log import StageProgress, figures_or_none
from airflow_provider_statecheck.spark.tables.alignment import InputColumns
from airflow_provider_statecheck.state.backends import backend_of_stage, directories_of
from airflow_provider_statecheck.storage.uris import normalise_base, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.spark.connectors.source import SplitEnumerator
    from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of a stage."""

    increments: int
    """Number of increments of this attempt."""
    rows: int
    """Number of elements that this attempt read."""
    checkpoint_id: int | None
    """Last completed checkpoint."""


def run_stage(
    spark: SparkSession,
    stage: Stage,
    *,
    job: str,
    checkpoint_dir: str,
    metadata: str,
    storage_options: dict[str, Any] | None = None,
    run: str = "script",
    num_retained: int = 2,
    retained_runs: int = 1,
    checkpoint_timeout_seconds: float = 600.0,
    tolerable_failed_checkpoints: int = -1,
    checkpoint_interval: timedelta | str | int | None = None,
    min_pause: timedelta | str | int | None = 0,
    savepoint_dir: str | None = None,
    from_savepoint: str | None = None,
    from_checkpoint: str | None = None,
    fork: str | None = None,
    claim_mode: RestoreMode | str = RestoreMode.NO_CLAIM,
    renamed_uids: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    savepoint_at_end: bool = False,
    data_inline_threshold: str | int = "20 KiB",
    allowed_locations: Sequence[str] | str | None = None,
    on_clear: OnClear | str = OnClear.RESUME_UNCHANGED,
    parallelism: int | None = None,
    settings: StageSettings | None = None,
) -> StageResult:
    """
    Run a stage to its end; resume a failed attempt of the same run.

    :param job: Name of the job, the unit of recovery.
    :param checkpoint_dir: Directory for checkpoints: a path or any fsspec URI that the Spark driver can reach.
    :param metadata: SQLAlchemy URL of the metadata database, such as ``sqlite:///state.db``; missing tables are
        created.
    :param storage_options: Options of the fsspec filesystem of ``checkpoint_dir``, such as credentials.
    :param run: Name of the run. A new run continues from the state of the last one. Names that are dates, such as
        ``2026-01-05``, are ordered, and a run before the last one is refused.
    :param num_retained: Maximum number of completed checkpoints to retain, at least 1.
    :param retained_runs: Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``, for
        a job that continues from run to run. As many runs can be run again.
    :param checkpoint_timeout_seconds: Maximum time from the start of a checkpoint to its acknowledgement. The unit is
        seconds.
    :param tolerable_failed_checkpoints: Number of consecutive checkpoint failures that a stage tolerates before it
        fails; ``-1`` for no limit.
    :param checkpoint_interval: Interval of periodic checkpoints, or ``auto``, which derives it from the cost of
        checkpoints and the failures of the job. Without a value, a loop takes a checkpoint after its configured number
        of items, and a stage with state after each increment. A bare number is milliseconds; text has a unit, such as
        ``5 min``.
    :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint. A bare number is
        milliseconds; text has a unit, such as ``5 min``.
    :param savepoint_dir: Default directory for savepoints: any fsspec URI. A request can name another one.
    :param from_savepoint: Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it has
        no checkpoint of its own to restore; of a savepoint of a whole job, from the member with its uid.
    :param from_checkpoint: For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or
        ``before:<run>``, or a pointer.
    :param fork: Name of the fork, which is the job ``<job>@<fork>``. The default is the name of the run.
    :param claim_mode: Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner
        keeps it, with ``claim`` this job takes it over.
    :param renamed_uids: For a stage whose uid changed: the old uid and the new one. The stage takes over the operator
        of the old uid in its job, and a savepoint of it. Keep the argument as long as the job exists. It also names
        functions of the stage whose uid has changed.
    :param allow_non_restored_state: Start with empty state if the savepoint belongs to other stages, or if the stage is
        new in a job from which another stage was removed. Also drop the state of functions that no longer exist.
    :param savepoint_at_end: Whether to take a savepoint when the stage has finished; needs a directory for savepoints.
    :param data_inline_threshold: Maximum size of a small value of a stage that is stored in the metadata of a
        checkpoint instead of a separate file, up to 1 MiB. A bare number is bytes; text has a unit: ``KiB``, ``MiB``,
        ``KB`` or ``MB``.
    :param allowed_locations: URIs where checkpoints and savepoints may reference files, in addition to the bucket or
        host (for local paths the directory) of ``checkpoint_dir``, ``savepoint_dir`` and a given pointer: a list, or
        text with commas. A reference to any other location is rejected before it is opened.
    :param on_clear: Behaviour of a cleared task: ``resume_unchanged`` keeps the steps whose code did not change (after
        a success, its run starts again), ``resume`` keeps every step, ``restart`` starts its run again. A script that
        starts again counts as a cleared task.
    :param parallelism: Number of subtasks. The default is that of the stage, or else the number of task slots of Spark.
    :param settings: What a Dag takes from its run, its configuration and its connection.
    :raises EnvironmentNotReadyError: if a package is missing.
    :raises InvalidConfigurationError: if an argument is invalid, or the steps of the stage do not fit together.
    :raises RunSupersededError: if the state already includes a later run.
    """
    check_driver_packages(*OF_STAGES)
    stage = load_stage(stage, parallelism=parallelism)
    directories = {"checkpoint_dir": checkpoint_dir, "savepoint_dir": savepoint_dir}
    directories |= directories_of(stage.state_backend, (settings or StageSettings()).state_config)
    attempt, driver = open_attempt(
        spark,
        settings,
        uid=stage.uid,
        job=job,
        metadata=metadata,
        storage_options=storage_options,
        run=run,
        num_retained=num_retained,
        retained_runs=retained_runs,
        checkpoint_timeout_seconds=checkpoint_timeout_seconds,
        tolerable_failed_checkpoints=tolerable_failed_checkpoints,
        checkpoint_interval=checkpoint_interval,
        min_pause=min_pause,
        from_savepoint=from_savepoint,
        from_checkpoint=from_checkpoint,
        fork=fork,
        claim_mode=claim_mode,
        renamed_uids=renamed_uids,
        allow_non_restored_state=allow_non_restored_state,
        savepoint_at_end=savepoint_at_end,
        data_inline_threshold=data_inline_threshold,
        allowed_locations=allowed_locations,
        on_clear=on_clear,
        parallelism=parallelism,
        **directories,
    )
    return StageRun(spark, attempt, stage, driver).run()


class StageRun:
    """
    Runs a stage in a registered attempt, and closes the attempt as finished or failed.

    :raises InvalidConfigurationError: if the steps of the stage do not fit together; nothing was started then.
    """

    def __init__(
        self, spark: SparkSession, attempt: StageAttempt, stage: Stage, settings: DriverSettings | None = None
    ) -> None:
        self._spark = spark
        self._attempt = attempt
        self._stage = stage
        self._settings = settings or DriverSettings()
        self._vertices = vertices_of(stage)
        self._endpoints = Endpoints(spark, attempt, stage, self._settings)
        self._uid = attempt.registration.uid

    def run(self, around: Callable[[Callable[[], StageResult]], StageResult] = lambda work: work()) -> StageResult:
        """
        Restore the state, process the rest of the source, and close the attempt.

        :param around: Calls the work, for instance in an interruptible thread; the attempt is closed after it returns.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises StateMigrationError: if the restored state of a function cannot be migrated to its current types.
        :raises StateCheckError: if the source, the sink or the storage fails, or the code of the stage exits.
        """
        with self._attempt.ending():
            try:
                result = around(self._run)
            except SystemExit as found:
                # Its process would succeed without the rest of the input.
                raise StageExitError(
                    f"Expected the code of stage {self._uid!r} to return or to raise an error, found "
                    f"sys.exit({found.code!r}), which would end the stage before the end of its input; raise an error."
                ) from found
            self._attempt.finish(AttemptStatus.FINISHED)
        return result

    def _require_directories(self) -> None:
        own = directories_of(self._stage.state_backend, self._settings.state_config)
        used = {"checkpoint_dir": self._attempt.storage.base_uri, "savepoint_dir": self._settings.savepoint_dir}
        other = [
            name for name, uri in own.items() if used[name] is None or normalise_base(uri) != normalise_base(used[name])
        ]
        if other:
            raise InvalidConfigurationError(
                f"Expected {other[0]} of the task to be that of the backend of its stage, {redact(own[other[0]])}, "
                f"found {redact(used[other[0]] or 'none')}; pass {other[0]}=, because this task registers before its "
                "driver imports the stage."
            )

    def _run(self) -> StageResult:
        self._require_directories()
        start = start_of(self._attempt, self._stage.input, self._endpoints.open_source)
        restored, enumerator = start.state, start.enumerator
        first = enumerator.next_increment()
        if first is None:
            return self._end_without_rows(start)
        with ExitStack() as closing:
            closing.enter_context(stage_settings_applied(self._spark))
            make_importable(self._spark, self._user_objects())
            frame = enumerator.load(first)
            columns = self._columns(restored, frame)
            planned, states = self._restore_states(restored, self._plan(columns))
            broadcasts = self._broadcasts(start)
            # The restored state has been checked against the functions and their inputs.
            commits = self.take_over(closing, start, states, planned[-1].output_schema)
            jobs = TaggedJobs(self._spark)
            first_rows = broadcasts.rows(partial(read_in_turn, jobs, uri=self._attempt.storage.base_uri))
            loop = IncrementLoop(
                self._attempt,
                enumerator,
                replace(self._tasks(restored, columns, planned, states), broadcast=first_rows),
                jobs,
                commits,
                self._pace(restored),
                self._progress(enumerator),
                time.monotonic,
                self._restored_seconds(restored),
                self._planned_for,
                broadcasts,
            )
            closing.callback(loop.close)
            increments, rows = loop.run(first, frame)
            commits.end()
        latest = self._attempt.latest
        return StageResult(increments, rows, latest.checkpoint_id if latest else None)

    def _broadcasts(self, start: StageStart) -> Broadcasts:
        is_new_run = start.state.values.run not in (None, self._run_key())
        return self._endpoints.open_broadcasts(
            start.state, self._vertices, is_new_run=is_new_run, given_up=start.given_up
        )

    def _columns(self, restored: RestoredStageState, frame: DataFrame) -> InputColumns:
        known = None if restored.values.columns is None else InputColumns.decode(restored.values.columns)
        if known is None:
            return InputColumns(schema=frame.schema)
        is_same_run = restored.values.run == self._run_key()
        continued = known.with_rows if is_same_run else known.of_next_run
        return continued(frame.schema, self._spark)

    def _plan(self, columns: InputColumns) -> tuple[PlannedVertex, ...]:
        return StagePlanner(self._spark, self._uid).plan(self._vertices, columns.schema)

    def _planned_for(self, tasks: IncrementTasks, frame: DataFrame) -> IncrementTasks:
        """
        Return the tasks for the rows of an increment: others if they have wider types, to which state is migrated.
        """
        columns = tasks.columns.with_rows(frame.schema, self._spark)
        if columns is tasks.columns:
            return tasks
        planned, types = self._plan(columns), tasks.states.types_of(tasks.vertices)
        require_same_output(tasks.vertices, planned, self._stage.output)
        planned = with_former_names(planned, types)
        schemas = merged_schemas(types, self._probed(planned))
        return replace(tasks, columns=columns, vertices=planned, states=tasks.states.with_types(schemas, types))

    def _probed(self, planned: Sequence[PlannedVertex]) -> dict[str, OperatorSchemas]:
        functions = [function for vertex in planned for function in vertex.functions]
        return probe_schemas(functions, storage=self._attempt.storage, logical_date=self._settings.logical_date)

    def _end_without_rows(self, start: StageStart) -> StageResult:
        # No function is planned, so the state of a savepoint cannot be checked, and is not taken over.
        is_left = self._attempt.begins_from_savepoint and start.state.checkpoint_id is not None
        with ExitStack() as closing:
            self.take_over(closing, replace(start, loaded=None) if is_left else start).end()
            # A restore in place may have fenced the attempt meanwhile, and the end of the sink retracts output.
            self._attempt.require_current()
        return StageResult(0, 0, start.state.checkpoint_id)

    def take_over(
        self, closing: ExitStack, start: StageStart, states: StageStates | None = None, schema: Any = None
    ) -> SinkCommits:
        """Confirm the restore, open the sink until the end, and make the commits that the restored checkpoint left."""
        restored = start.state
        self._endpoints.require_sink(restored)
        self._attempt.confirm_restore(
            start.loaded, starts_over=restored.checkpoint_id is None, restarted_run=start.restarted_run
        )
        self._report_restored(restored, start.enumerator, states)
        self._endpoints.open_sink(restored, schema)
        closing.push(self._endpoints.close_sink)
        commits = SinkCommits(self._stage.output, self._attempt, restored.open_commits)
        # The previous attempt may have ended between its checkpoint and the commit.
        if restored.checkpoint_id is not None and commits.has_open:
            commits.commit(restored.checkpoint_id)
        return commits

    def _report_restored(
        self, restored: RestoredStageState, enumerator: SplitEnumerator, states: StageStates | None
    ) -> None:
        if restored.checkpoint_id is None:
            return
        summary = figures_or_none(
            lambda: CheckpointSummary(
                sources=(source_summary(enumerator, None),),
                states=() if states is None else tuple(states.summaries(self._uid)),
                seconds_saved=self._restored_seconds(restored),
            )
        )
        if summary is not None:
            self._attempt.work.report_restored(summary)

    def _restored_seconds(self, restored: RestoredStageState) -> float:
        # The restore of an earlier run saves no time of this one.
        return restored.values.run_seconds if restored.values.run == self._run_key() else 0.0

    def _user_objects(self) -> list[object]:
        functions = [node.function for node in self._stage.nodes if hasattr(node, "function")]
        return [*functions, self._stage.output, self._stage.state_backend]

    def _restore_states(
        self, restored: RestoredStageState, planned: tuple[PlannedVertex, ...]
    ) -> tuple[tuple[PlannedVertex, ...], StageStates]:
        functions = [function for vertex in planned for function in vertex.functions]
        max_parallelism = self._stage.max_parallelism
        bounds = (max_parallelism, restored.key_groups(functions, self._settings))
        subtasks = self._stage.parallelism or subtasks_within(tasks_at_once(self._spark), bounds)
        assigned = restored.assigned_to(
            functions, self._settings, parallelism=subtasks, max_parallelism=max_parallelism
        )
        key_groups = max_parallelism or default_max_parallelism(subtasks)
        key_groups = max(assigned.max_parallelisms.values(), default=key_groups)
        advice = max_parallelism_advice(subtasks, key_groups) if restored.checkpoint_id is None else None
        if advice is not None:
            log.warning("%s", advice)
        states = {target.uid: state for target, state in assigned.matched.pairs}
        anew = {each.uid: each.operator_id for each in functions if each.reads_results}
        restored_schemas = {uid: restored.schemas_of(state) for uid, state in states.items() if uid not in anew}
        with_keys = (
            uid for uid in restored_schemas if any(s.managed_keyed for s in states[uid].subtask_states.values())
        )
        planned = with_former_names(planned, {uid: restored_schemas[uid] for uid in with_keys})
        return planned, StageStates(
            merged_schemas(restored_schemas, self._probed(planned)),
            parallelism=subtasks,
            max_parallelism=key_groups,
            restored={key: each for key, each in assigned.subtask_states.items() if key[0] not in anew.values()},
            unchanged=states,
            restored_schemas=restored_schemas,
            restored_checkpoint_id=restored.checkpoint_id,
        )

    def _tasks(
        self,
        restored: RestoredStageState,
        columns: InputColumns,
        planned: Sequence[PlannedVertex],
        states: StageStates,
    ) -> IncrementTasks:
        attempt = self._attempt.grant.attempt
        return IncrementTasks(
            columns=columns,
            vertices=planned,
            states=states,
            sink=self._stage.output,
            storage=self._attempt.storage,
            attempt=attempt,
            config=self._attempt.storage_config,
            context=SubtaskContext(
                job_id=attempt.job_id,
                parallelism=states.parallelism,
                max_parallelism=states.max_parallelism,
                now_ms=self._now_ms(restored),
                logical_date=self._settings.logical_date,
                state_backend=backend_of_stage(self._stage.state_backend, self._settings.state_config),
            ),
            combining=Combining(self._settings.combines),
        )

    def _pace(self, restored: RestoredStageState) -> Pace:
        settings, cost = self._settings, restored.values.cost_seconds
        costs = () if cost is None else (cost,)
        return pace_of(self._attempt, settings.checkpoint_interval, settings.min_pause_ms, time.monotonic, costs)

    def _progress(self, enumerator: SplitEnumerator) -> StageProgress:
        unit = SizeUnit.of(enumerator)
        return StageProgress(self._uid, unit.total, restored=unit.finished, monotonic=time.monotonic)

    def _now_ms(self, restored: RestoredStageState) -> int:
        """Return the time for the expiry of state, which is the same in all attempts of a run."""
        date, values = self._settings.logical_date or logical_date_of(self._run_key()), restored.values
        if date is None and values.run == self._run_key() and values.now_ms is not None:
            return values.now_ms
        return int((date or self._first_registration()).timestamp() * 1000)

    def _first_registration(self) -> datetime:
        operator_id, run = self._attempt.grant.attempt.operator_id, self._run_key()
        attempts = self._attempt.job_view().attempts
        own = [a for a in attempts if (a.operator_id, a.owner.run_key) == (operator_id, run)]
        if self._attempt.registration.owner.task is None:
            # A script that starts again after its end begins another run under the same name.
            ended = max((a.epoch for a in own if a.status is AttemptStatus.FINISHED), default=0)
            own = [a for a in own if a.epoch > ended]
        return min(a.registered_at for a in own)

    def _run_key(self) -> str:
        return self._attempt.registration.owner.run_key


class DriverTerminatedError(BaseException):
    """The driver received SIGTERM while its stage was running; no ``Exception``, as the signal may arrive anywhere."""


def main() -> None:
    """
    Run the stage at the location in the first argument, or in ``--statecheck-stage``.

    :raises EnvironmentNotReadyError: if no Airflow operator submitted this driver, or a package is missing.
    :raises InvalidConfigurationError: if there is no such stage.
    """
    check_driver_packages(*OF_STAGES)
    handover = find_handover()
    spark, attempt = begin_submitted(handover)
    stage = _load_or_fail(taken_argument(STAGE_ARGUMENT) or sys.argv[1], handover.driver.parallelism, attempt)
    signal.signal(signal.SIGTERM, _terminate)
    StageRun(spark, attempt, stage, handover.driver).run(functools.partial(run_interruptibly, spark))
    spark.stop()


def _load_or_fail(location: str, parallelism: int | None, attempt: StageAttempt) -> Stage:
    try:
        return load_stage(location, parallelism=parallelism)
    except BaseException as error:
        # The task that submitted this driver reads the error only from the attempt.
        attempt.finish(AttemptStatus.FAILED, message_of(error))
        raise


def _terminate(*_: object) -> NoReturn:
    raise DriverTerminatedError(
        "The driver received SIGTERM; its stage is closed, and a retry resumes after its last checkpoint."
    )
