"""One try of a stage: restore, plan, run increment by increment, finish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.layout import shared_uri
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.run_order import logical_date_of
from airflow_provider_statecheck.exceptions import SourceRestartRequiredError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.pacing import AutoInterval, FailureHistory, Pace
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.script import open_attempt
from airflow_provider_statecheck.spark.stages.increment_jobs import Combining, IncrementJobs, IncrementTasks
from airflow_provider_statecheck.spark.stages.increment_loop import IncrementLoop, SinkCommits, finished_of, total_of
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex, StagePlanner, vertices_of
from airflow_provider_statecheck.spark.stages.preparation import (
    carried_schemas,
    make_importable,
    max_parallelism_advice,
    probe_schemas,
    stage_settings_applied,
)
from airflow_provider_statecheck.spark.stages.stage import AUTO, Stage, StageSettings
from airflow_provider_statecheck.spark.stages.stage_state import (
    SINK,
    Parallelism,
    RestoredStageState,
    StageStates,
    restore_functions,
)
from airflow_provider_statecheck.spark.status_log import StageProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_statecheck.spark.sources.source import Source, SplitEnumerator
    from airflow_provider_statecheck.state.backends.state_backend import StateBackend


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage did."""

    increments: int
    """How many this try ran."""
    rows: int
    """How many elements it read."""
    checkpoint_id: int | None
    """Its last completed checkpoint."""


def _call(work: Callable[[], StageResult]) -> StageResult:
    return work()


class StageRun:
    """
    Runs a stage in a registered try and closes the try, as finished or as failed.

    :param spark: The session that computes.
    :param attempt: The registered try.
    :param stage: What to run.
    :param settings: How.
    :raises InvalidConfigurationError: for a stage whose parts do not fit; nothing was started then.
    """

    def __init__(
        self, spark: SparkSession, attempt: StageAttempt, stage: Stage, settings: StageSettings | None = None
    ) -> None:
        self._spark = spark
        self._attempt = attempt
        self._stage = stage
        self._settings = settings or StageSettings()
        self._vertices = vertices_of(stage)
        self._uid = attempt.registration.uid

    def run(self, around: Callable[[Callable[[], StageResult]], StageResult] = _call) -> StageResult:
        """
        Restore what there is, work through the rest of the source, and close the attempt.

        :param around: Calls what works, in a thread that can be interrupted for instance; the attempt is closed behind it.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises StateMigrationError: if a function changed so that its state cannot go on.
        :raises StateCheckError: for trouble with the source, the sink or the storage.
        """
        try:
            result = around(self._run)
            self._attempt.finish(AttemptStatus.FINISHED)
        except BaseException as error:
            self._attempt.fail(error)
            raise
        return result

    def _run(self) -> StageResult:
        found = self._attempt.load()
        restored, enumerator = self._start(found)
        first = enumerator.next_increment()
        commits = SinkCommits(self._stage.output, self._attempt, restored.open_commits)
        with ExitStack() as closing:
            closing.enter_context(stage_settings_applied(self._spark))
            make_importable(self._spark, self._parts_of_users())
            if first is None:
                # Without rows no function is planned, so nothing tells whether the state of a savepoint fits.
                self._confirm(None if self._attempt.begins_from_savepoint else found, restored)
                self._open_sink(restored, None)
                closing.push(self._close_sink)
                _commit_restored(restored, commits)
                commits.end()
                return StageResult(0, 0, restored.checkpoint_id)
            frame = enumerator.load(first)
            planned = StagePlanner(self._spark, self._uid).plan(self._vertices, frame)
            states, schemas = self._restore_states(restored, planned)
            # Only now is it known that the state fits.
            self._confirm(found, restored)
            self._open_sink(restored, planned[-1].output_schema)
            closing.push(self._close_sink)
            _commit_restored(restored, commits)
            tasks = self._tasks(planned, states, schemas, self._now_ms(restored))
            loop = IncrementLoop(
                self._attempt,
                enumerator,
                planned,
                tasks,
                IncrementJobs(self._spark),
                states,
                commits,
                self._pace(restored),
                self._progress(enumerator),
                self._run_key(),
                self._settings.monotonic,
            )
            closing.callback(loop.close)
            increments, rows = loop.run(first, frame)
            commits.end()
        latest = self._attempt.latest
        return StageResult(increments, rows, latest.checkpoint_id if latest else None)

    def _confirm(self, found: RestoredStage | None, restored: RestoredStageState) -> None:
        # A source that begins again takes nothing of a savepoint, so the savepoint stays its owner's.
        is_left = restored.checkpoint_id is None and self._attempt.begins_from_savepoint
        self._attempt.confirm_restore(None if is_left else found)

    def _start(self, restored: RestoredStage | None) -> tuple[RestoredStageState, SplitEnumerator]:
        parts = RestoredStageState(self._attempt, restored)
        try:
            return parts, self._open_source(parts)
        except SourceRestartRequiredError as changed:
            log.warning("The stage begins again: %s", changed)
            fresh = RestoredStageState(self._attempt, None)
            return fresh, self._open_source(fresh)

    def _parts_of_users(self) -> list[object]:
        functions = [node.function for node in self._stage.nodes if hasattr(node, "function")]
        return [*functions, self._stage.output, self._stage.state_backend]

    def _open_source(self, restored: RestoredStageState) -> SplitEnumerator:
        source = cast("Source", self._stage.input)  # vertices_of refused a stage without one
        return source.open(
            self._spark,
            restored.source,
            new_run=restored.run is not None and restored.run != self._run_key(),
            storage_options=self._settings.storage_options,
        )

    def _open_sink(self, restored: RestoredStageState, schema: Any) -> None:
        sink = self._stage.output
        if sink is None:
            return
        from airflow_provider_statecheck.spark.sinks.sink import SinkContext

        grant = self._attempt.grant
        sink.open(
            SinkContext(
                job_id=grant.attempt.job_id,
                job_name=self._attempt.registration.job_name,
                uid=f"{self._uid}/{SINK}",
                operator_id=grant.attempt.operator_id,
                epoch=grant.attempt.epoch,
                generation=grant.generation,
                restored_checkpoint_id=restored.own_checkpoint_id,
                restored_epoch=restored.own_epoch,
                is_fresh=restored.checkpoint_id is None,
                storage_options=self._settings.storage_options,
                schema=schema,
                gone_uids=tuple(f"{uid}/{SINK}" for uid in grant.gone_uids),
            )
        )

    def _close_sink(self, kind: object, *_: object) -> None:
        if self._stage.output is not None:
            self._stage.output.close(kind is None)

    def _restore_states(
        self, restored: RestoredStageState, planned: Sequence[PlannedVertex]
    ) -> tuple[StageStates, dict[str, Any]]:
        operators = [operator for vertex in planned for operator in vertex.operators]
        settings, subtasks = self._settings, self._stage.parallelism or _default_parallelism(self._spark)
        functions = restore_functions(
            restored,
            operators,
            Parallelism(subtasks=subtasks, max_parallelism=self._stage.max_parallelism),
            stage_uid=self._uid,
            renamed_uids=settings.renamed_uids,
            allow_non_restored_state=settings.allow_non_restored_state,
        )
        if restored.checkpoint_id is None:
            _advise(subtasks, functions.max_parallelism)
        schemas = probe_schemas(operators, storage=self._attempt.storage, logical_date=settings.logical_date)
        states = StageStates(
            carried_schemas(functions.schemas, schemas),
            parallelism=subtasks,
            max_parallelism=functions.max_parallelism,
            restored=functions.states,
            unchanged=functions.restored,
            restored_checkpoint_id=restored.checkpoint_id,
        )
        return states, dict(functions.schemas)

    def _tasks(
        self,
        planned: Sequence[PlannedVertex],
        states: StageStates,
        schemas: dict[str, Any],
        now_ms: int,
    ) -> IncrementTasks:
        attempt = self._attempt.grant.attempt
        return IncrementTasks(
            vertices=planned,
            states=states,
            schemas=schemas,
            sink=self._stage.output,
            storage=self._attempt.storage,
            state_directory=shared_uri(self._attempt.storage.base_uri, attempt.job_id, attempt.operator_id),
            attempt=attempt,
            state_backend=self._state_backend(),
            data_inline_threshold=self._settings.data_inline_threshold,
            logical_date=self._settings.logical_date,
            now_ms=now_ms,
            combining=Combining(self._settings.combines),
        )

    def _state_backend(self) -> StateBackend:
        from airflow_provider_statecheck.state.backends.loading import backend_of_stage

        return backend_of_stage(self._stage.state_backend, self._settings.state_config)

    def _pace(self, restored: RestoredStageState) -> Pace:
        settings, interval = self._settings, self._settings.checkpoint_interval
        return Pace(
            self._auto_interval(restored) if interval == AUTO else interval, settings.min_pause, settings.monotonic
        )

    def _auto_interval(self, restored: RestoredStageState) -> AutoInterval:
        view, operator_id = self._attempt.job_view(), self._attempt.grant.attempt.operator_id
        return AutoInterval(FailureHistory.of(view, operator_id), restored.cost_seconds)

    def _progress(self, enumerator: SplitEnumerator) -> StageProgress:
        return StageProgress(
            self._uid, total_of(enumerator), restored=finished_of(enumerator), monotonic=self._settings.monotonic
        )

    def _now_ms(self, restored: RestoredStageState) -> int:
        """Return the time by which state expires: one for all tries of the run, so that each finds the same values alive."""
        date = self._settings.logical_date or logical_date_of(self._run_key())
        if date is None and restored.run == self._run_key() and restored.now_ms is not None:
            return restored.now_ms
        return int((date or self._first_registration()).timestamp() * 1000)

    def _first_registration(self) -> datetime:
        operator_id, run = self._attempt.grant.attempt.operator_id, self._run_key()
        attempts = self._attempt.job_view().attempts
        mine = [a for a in attempts if (a.operator_id, a.owner.run_key) == (operator_id, run)]
        if not self._attempt.registration.owner.airflow:
            # A script that starts again after its end begins another run, although it gives it the same name.
            ended = max((a.epoch for a in mine if a.status is AttemptStatus.FINISHED), default=0)
            mine = [a for a in mine if a.epoch > ended]
        return min(a.registered_at for a in mine)

    def _run_key(self) -> str:
        return self._attempt.registration.owner.run_key


def _default_parallelism(spark: SparkSession) -> int:
    from airflow_provider_statecheck.spark.driver.session import is_connect

    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


def _advise(subtasks: int, max_parallelism: int) -> None:
    advice = max_parallelism_advice(subtasks, max_parallelism)
    if advice is not None:
        log.warning("%s", advice)


def _commit_restored(restored: RestoredStageState, commits: SinkCommits) -> None:
    # The try before may have ended between its checkpoint and the commit.
    if restored.checkpoint_id is not None and commits.has_open:
        commits.commit(restored.checkpoint_id)


def run_stage(
    spark: SparkSession,
    stage: Stage,
    *,
    job: str,
    checkpoint_dir: str,
    metadata: str,
    run: str = "script",
    on_clear: OnClear | str = OnClear.RESUME_UNCHANGED,
    num_retained: int = 2,
    retained_runs: int = 1,
    settings: StageSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    from_savepoint: str | None = None,
    claim_mode: RestoreMode | str = RestoreMode.NO_CLAIM,
    from_checkpoint: str | None = None,
    fork: str | None = None,
    allowed_locations: Sequence[str] = (),
) -> StageResult:
    """
    Run a stage to its end, or from where its last try failed.

    :param job: Name of the unit of recovery.
    :param checkpoint_dir: Where the bytes go: a path or any fsspec URI.
    :param metadata: SQLAlchemy URL of the database for the rows, such as ``sqlite:///state.db``; its tables are made.
    :param run: Name of the run; a new one goes on from the state of the last. Names that are dates, such as ``2026-01-05``,
        are in their order, and an earlier one is refused.
    :param on_clear: ``resume_unchanged`` (default), ``resume`` or ``restart``.
    :param num_retained: How many completed checkpoints to keep, at least 1.
    :param retained_runs: Of how many earlier runs to keep the last checkpoint, so that as many can be begun again.
    :param settings: How the stage is run.
    :param storage_options: Options of the filesystem of the checkpoints.
    :param from_savepoint: Pointer to what a try begins from that would start with nothing.
    :param claim_mode: Whose that is then: ``no_claim`` (default, its owner's) or ``claim`` (the job's).
    :param from_checkpoint: For a run that works on a copy: the checkpoint of the job that it begins at, as an id,
        ``run:<run>``, ``before:<run>`` or a pointer.
    :param fork: Name of the copy, which is the job ``<job>@<fork>``; by default that of the run.
    :param allowed_locations: Where else checkpoints and savepoints may name files, as URIs such as ``s3://archive``.
    :raises InvalidConfigurationError: for an argument out of range, or a stage whose parts do not fit.
    :raises RunSupersededError: if the state stands at a later run.
    """
    settings = settings or StageSettings()
    attempt = open_attempt(
        spark,
        job=job,
        checkpoint_dir=checkpoint_dir,
        metadata=metadata,
        uid=stage.uid or "stage",
        run=run,
        on_clear=OnClear(on_clear),
        num_retained=num_retained,
        retained_runs=retained_runs,
        checkpoint_timeout_seconds=600.0,
        tolerable_failed_checkpoints=-1,
        storage_options=storage_options or {},
        savepoint_dir=None,
        from_savepoint=from_savepoint,
        claim_mode=RestoreMode(claim_mode),
        renamed_uids=settings.renamed_uids,
        allow_non_restored_state=settings.allow_non_restored_state,
        from_checkpoint=from_checkpoint,
        fork=fork,
        allowed_locations=allowed_locations,
        data_inline_threshold=settings.data_inline_threshold,
    )
    return StageRun(spark, attempt, stage, settings).run()
