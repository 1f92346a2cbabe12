"""
The ``checkpoint`` object of a stage, also for drivers started by ``spark-submit``.

A step's DataFrame is written once and named by every later checkpoint; a try that finds it takes it from there instead
of computing it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.auto_snapshot import AutoSnapshots
from airflow_provider_statecheck.spark.costs.pacing import Rhythm, pace_of, require_every, require_pace
from airflow_provider_statecheck.spark.costs.stage_costs import StageCosts, require_budget
from airflow_provider_statecheck.spark.driver.handover import HANDOVER_VARIABLE, Handover, take_handover
from airflow_provider_statecheck.spark.driver.readiness import check_driver_packages
from airflow_provider_statecheck.spark.loop_progress import keyed
from airflow_provider_statecheck.spark.refining_loop import Refinement, RefiningLoop
from airflow_provider_statecheck.spark.scope import ScopedNames, StepKey
from airflow_provider_statecheck.spark.steps import (
    StageCheckpointer,
    StageState,
    StageSteps,
    StepReport as StepReport,
    built,
)
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.spark.driver.handover import DriverSettings


log = logging.getLogger(__name__)

Item = TypeVar("Item")


class StageContext:
    """
    A stage's view of its checkpoints.

    Use it as a context manager: leaving it normally closes the attempt as finished, leaving it by an error as failed.
    Its DataFrames are meant for use inside; their files stay until the attempt ends.

    :param spark: The session that computes.
    :param attempt: The registered try.
    :param overhead_budget: Which part of the stage's time checkpointing may take, above 0 and up to 1; what is optional
        is put off where it takes more. ``None`` sets no limit.
    :param checkpoint_interval: How much time lies between two checkpoints that loops take by themselves, such as
        ``5 min``; a bare number is milliseconds, and ``auto`` finds it by what checkpoints cost and how often the job
        failed. The last one of a loop does not wait. ``None`` sets no limit.
    :param min_pause: How much time lies after a completed checkpoint before a loop takes the next one by itself.
    :param monotonic: The clock for durations, in seconds.
    :raises InvalidConfigurationError: for a budget or duration out of range.
    """

    def __init__(
        self,
        spark: SparkSession,
        attempt: StageAttempt,
        *,
        overhead_budget: float | None = None,
        checkpoint_interval: timedelta | str | int | None = None,
        min_pause: timedelta | str | int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        require_budget(overhead_budget)
        pace = pace_of(attempt, checkpoint_interval, min_pause, monotonic)
        self._attempt = attempt
        self._monotonic = monotonic
        restored = attempt.restore()
        self.restored: CheckpointRecord | None = restored.checkpoint if restored else None
        """The checkpoint that this try started from; ``None`` for a fresh start."""
        self._saving = StageCheckpointer(
            attempt, restored, overhead_budget=overhead_budget, pace=pace, monotonic=monotonic
        )
        self.state: StageState = self._saving.state
        """Small values by name, saved with each checkpoint."""
        self.costs: StageCosts = self._saving.costs
        """What checkpointing took, over all tries."""
        self._names = ScopedNames()
        self._steps = StageSteps(spark, attempt, self._saving, monotonic)
        self._auto = AutoSnapshots(self._steps)
        self.steps: list[StepReport] = self._steps.reports
        """The steps that this try has passed, in their order."""

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        *,
        job: str,
        checkpoint_dir: str,
        metadata: str,
        uid: str = "stage",
        run: str = "script",
        on_clear: OnClear | str = OnClear.RESUME_UNCHANGED,
        num_retained: int = 2,
        checkpoint_timeout_seconds: float = 600.0,
        tolerable_failed_checkpoints: int = -1,
        overhead_budget: float | None = None,
        checkpoint_interval: timedelta | str | int | None = None,
        min_pause: timedelta | str | int | None = None,
        storage_options: dict[str, Any] | None = None,
        savepoint_dir: str | None = None,
        from_savepoint: str | None = None,
        claim_mode: RestoreMode | str = RestoreMode.NO_CLAIM,
        renamed_uids: Mapping[str, str] | None = None,
        allow_non_restored_state: bool = False,
        allowed_locations: Sequence[str] = (),
    ) -> Self:
        """
        Begin a try in a notebook or a plain script, without Airflow.

        A try after one that failed or died resumes; after one that finished it starts over.

        :param job: Name of the unit of recovery.
        :param checkpoint_dir: Where the bytes go: a path or any fsspec URI.
        :param metadata: SQLAlchemy URL of the database for the rows, such as ``sqlite:///state.db``; its tables are made.
        :param uid: Name of this stage within the job.
        :param run: Name of the run; a new one keeps ``state`` and finished items, but computes every snapshot anew.
        :param on_clear: ``resume_unchanged`` (default), ``resume`` (also steps whose code changed) or ``restart``.
        :param num_retained: How many completed checkpoints to keep, at least 1.
        :param checkpoint_timeout_seconds: How long a checkpoint may take from its id to its acknowledgement.
        :param tolerable_failed_checkpoints: How many may fail in a row before the stage fails, ``-1`` for any number.
        :param overhead_budget: Which part of the time checkpointing may take, such as 0.05; ``None`` sets no limit.
        :param checkpoint_interval: How much time lies between two checkpoints that loops take by themselves, such as
            ``5 min``; a bare number is milliseconds, ``auto`` finds it.
        :param min_pause: How much time lies after a completed checkpoint before a loop takes the next one by itself.
        :param storage_options: Options of the fsspec filesystem.
        :param savepoint_dir: Where savepoints go whose request names no place.
        :param from_savepoint: Pointer to what a try begins from that would start with nothing.
        :param claim_mode: Whose that is then: ``no_claim`` (default, its owner's) or ``claim`` (the job's).
        :param renamed_uids: For a stage that changed its uid: the old one and the new one. It takes over the operator of the
            old uid, and a savepoint of it. Keep it as long as the job lives.
        :param allow_non_restored_state: Whether to start with nothing where the savepoint is another stage's, or where the
            job has checkpoints under other uids only.
        :param allowed_locations: Where else checkpoints and savepoints may name files, as URIs such as ``s3://archive``.
        :raises InvalidConfigurationError: for an argument out of range.
        :raises NoRestorableCheckpointError: if there was state and none of it can be read.
        :raises IncompatibleCheckpointError: if the savepoint is another stage's, or the uid is new in a job that has
            checkpoints under another one.
        :raises SnapshotClaimedError: if another job claimed the savepoint.
        """
        from airflow_provider_statecheck.spark.script import open_attempt

        require_budget(overhead_budget)
        require_pace(checkpoint_interval, min_pause)
        attempt = open_attempt(
            spark,
            job=job,
            checkpoint_dir=checkpoint_dir,
            metadata=metadata,
            uid=uid,
            run=run,
            on_clear=OnClear(on_clear),
            num_retained=num_retained,
            checkpoint_timeout_seconds=checkpoint_timeout_seconds,
            tolerable_failed_checkpoints=tolerable_failed_checkpoints,
            storage_options=storage_options or {},
            savepoint_dir=savepoint_dir,
            from_savepoint=from_savepoint,
            claim_mode=RestoreMode(claim_mode),
            renamed_uids=renamed_uids or {},
            allow_non_restored_state=allow_non_restored_state,
            allowed_locations=allowed_locations,
        )
        return cls(
            spark,
            attempt,
            overhead_budget=overhead_budget,
            checkpoint_interval=checkpoint_interval,
            min_pause=min_pause,
        )

    @classmethod
    def current(cls, spark: SparkSession | None = None) -> Self:
        """
        Return the context of an application that ``CheckpointedSparkSubmitOperator`` submitted.

        The first call finds the coordinator by itself and restores; later ones return the same context.

        :param spark: The session that computes; by default the running one, else a new one.
        :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing on it.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises NoRestorableCheckpointError: if there was state and none of it can be read.
        """
        return cast("Self", CURRENT.get(cls, spark))

    def snapshot(
        self,
        name: str,
        build: DataFrame | Callable[[], DataFrame],
        *,
        when: bool | Literal["auto"] = True,
        version: str | None = None,
    ) -> DataFrame:
        """
        Return a step's DataFrame, from its snapshot where there is one, else computed, written and read back.

        The result equals the DataFrame up to nullability and the order of rows. A step whose code changed since, or
        that was built from one that changed, is computed anew.

        :param name: Name of the step, unique in its scope.
        :param build: The DataFrame, or a callable that gives it and is not called when the step is restored.
        :param when: ``False`` lets a cheap step opt out: it is computed in each try and never written. ``"auto"`` has it
            computed into Spark's cache and timed, and written only where computing it again would take longer.
        :param version: Change it where the result changes for a reason that the code does not show.
        :raises InvalidConfigurationError: for any other ``when``.
        :raises DuplicateNameError: if the name is used twice in one scope.
        :raises UnsupportedStateError: for a DataFrame that could not be restored equal.
        :raises StorageError: if the disk is full, or has too little room to begin.
        """
        _require_when(when)
        step = self._names.claim(name)
        if when is False:
            return built(build)
        fingerprint = self._steps.fingerprint(build, version)
        live = self._steps.restorable(step, fingerprint)
        if live is not None:
            self._steps.report(step, live, is_restored=True)
            return self._steps.read(live)
        if when == "auto":
            return self._auto.take(step, build, fingerprint)
        return self._steps.compute(step, build, fingerprint)

    def iterate(
        self,
        name: str,
        initial: DataFrame | Callable[[], DataFrame],
        steps: int,
        every: int = 1,
        *,
        step: Callable[[DataFrame, int], DataFrame],
        until: Callable[[DataFrame, DataFrame], bool] | None = None,
        version: str | None = None,
    ) -> DataFrame:
        """
        Refine a DataFrame step by step and return the last one, read from its snapshot.

        ``ranks = checkpoint.iterate("ranks", start, 20, every=5, step=lambda ranks, number: spread(ranks, links))``.
        The step is a function because a loop's body cannot hand its result back, and a function can be told from a changed
        one.

        After every so many steps the DataFrame is written, so that plans stay short, and a checkpoint is taken; a retry
        goes on after the last one. In between, steps are lazy. Only the newest snapshot is kept: a DataFrame given to
        ``step`` or ``until`` can be read until the one after the next is written, and is not to be kept for longer.

        More steps than before go on from the last; fewer are computed from the beginning. A changed ``step``,
        ``initial`` or ``until`` too; a changed ``every`` only together with ``until``.

        :param name: Name of the loop, unique in its scope. Names used in ``step`` belong to the single step.
        :param initial: The DataFrame before the first step, or a callable that gives it and is not called on a restore.
        :param steps: How many steps, at most.
        :param every: Write the DataFrame and take a checkpoint after so many steps, and after the last one.
        :param step: Gets the DataFrame and the number of the step, counted from 1, and gives the next DataFrame.
        :param until: Gets the DataFrame and the one of ``every`` steps before, and says whether the loop is over.
        :param version: Change it where the result changes for a reason that the code does not show.
        :raises InvalidConfigurationError: for an argument out of range.
        :raises DuplicateNameError: if the name is used twice in one scope.
        :raises UnsupportedStateError: for a DataFrame that could not be restored equal.
        :raises StorageError: if the disk is full, or has too little room to begin.
        """
        asked = Refinement(initial=initial, steps=steps, every=every, step=step, until=until, version=version)
        return RefiningLoop(self._steps, self._names, self._names.claim(name), asked, self._auto.release).result()

    def each(
        self,
        name: str,
        items: Iterable[Item],
        *,
        key: Callable[[Item], Any] | None = None,
        every: int = 1,
        every_seconds: float | None = None,
    ) -> Iterator[Item]:
        """
        Yield the items that are not finished yet.

        An item is finished when the next one is asked for, and safe with the next checkpoint. What the body does
        outside this library is therefore done at least once. Names of steps used in the body belong to the item. Use
        it in the head of a ``for``: a loop that is kept in a variable and left by ``break`` keeps its item open.

        :param name: Name of the loop, unique in its scope.
        :param items: The items of this try; they may differ from those of the try before.
        :param key: Gives an item's identity; by default text, numbers and dates are their own.
        :param every: Take a checkpoint after so many finished items.
        :param every_seconds: Take one also when this loop's last is older than this.
        :raises InvalidConfigurationError: for an item without a key or ``every`` below 1.
        :raises DuplicateNameError: if the name is taken or two items have one key.
        """
        require_every(every)
        pairs = keyed(items, key)
        return self._work(self._names.claim(name), pairs, every, every_seconds)

    def checkpoint(self) -> CheckpointRecord | None:
        """
        Take a checkpoint now.

        :return: The completed checkpoint; ``None`` if it failed and failures are tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over; this one must stop.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        return self._saving.checkpoint()

    def is_restored(self) -> bool:
        """Tell whether this try started from a checkpoint."""
        return self.restored is not None

    def finish(self) -> None:
        """Save what is not saved yet and close the attempt; steps of earlier tries that nobody asked for are dropped."""
        self._saving.snapshots.drop_unless_used()
        if not self._saving.is_saved():
            self.checkpoint()
        self._attempt.finish(AttemptStatus.FINISHED)
        self._close()

    def fail(self, error: BaseException) -> None:
        """Close the attempt as failed, tell which snapshot could not be read if that was why, and say what was kept."""
        damaged = self._saving.snapshots.damage_behind(error)
        for uri, problem in damaged.items():
            log.error("Snapshot %s is damaged, the next try computes it anew: %s", redact(uri), problem)
        self._attempt.fail(error, tuple(damaged))
        self._close()

    def kept(self) -> str:
        """Say what a retry will find."""
        return self._attempt.kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.fail(error)

    def _work(
        self, loop: StepKey, pairs: list[tuple[str, Item]], every: int, every_seconds: float | None
    ) -> Iterator[Item]:
        rhythm = Rhythm(every, every_seconds, self.costs, self._saving.pace, self._monotonic)
        for item_key, item in pairs:
            if self._saving.progress.is_finished(loop, item_key):
                continue
            with self._names.inside(loop[1], item_key) as scope:
                yield item
            self._saving.finish_item(loop, item_key)
            self._auto.release(scope)
            if rhythm.is_time():
                self.checkpoint()
                rhythm.taken()
        if rhythm.unsaved:
            self.checkpoint()

    def _close(self) -> None:
        self.costs.report()
        self._auto.release()


def _require_when(when: object) -> None:
    if not isinstance(when, bool) and when != "auto":
        raise InvalidConfigurationError(f"Expected when to be True, False or 'auto', found {when!r}.")


# A driver outlives an api-server that is restarted.
_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


class CurrentContext:
    """Makes the context at the first call and remembers it: a handover is good for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handover: Handover | None = None
        self._context: StageContext | None = None

    def get(self, kind: type[StageContext], spark: SparkSession | None) -> StageContext:
        """
        Return the context of this process.

        :param kind: What to make at the first call.
        :param spark: The session that computes; by default the running one, else a new one.
        :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing.
        """
        with self._lock:
            if self._context is None:
                check_driver_packages()
                # Kept, so that a call after one that failed finds it again.
                self._handover = self._handover or take_handover()
                session, attempt = _begin(self._handover, spark)
                self._context = kind(
                    session,
                    attempt,
                    overhead_budget=self._handover.driver.overhead_budget,
                    checkpoint_interval=self._handover.driver.checkpoint_interval,
                    min_pause=self._handover.driver.min_pause_ms,
                )
            return self._context


CURRENT = CurrentContext()


def begin_submitted() -> tuple[SparkSession, StageAttempt, DriverSettings]:
    """
    Return what a driver works with that an operator submitted: a session, its attempt, and how it is run.

    :raises EnvironmentNotReadyError: if no operator submitted this driver.
    """
    handover = take_handover()
    return *_begin(handover, None), handover.driver


def _begin(handover: Handover, spark: SparkSession | None) -> tuple[SparkSession, StageAttempt]:
    session = spark or _session()
    _hide_from_workers(session)
    return session, _repeat_registration(session, handover)


def _repeat_registration(spark: SparkSession, handover: Handover) -> StageAttempt:
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import GivenToken, HttpClient
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway
    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.driver.readiness import require_reachable
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

    storage = CheckpointStorage.open(handover.registration.storage_base, **handover.driver.storage_options)
    storage = storage.allowing(handover.driver.savepoint_dir, locations=handover.driver.allowed_locations)
    # The operator has shipped the package, or it is installed.
    require_reachable(spark, storage)
    http = HttpGateway(HttpClient(handover.url), GivenToken(handover.token))
    return StageAttempt(
        RetryingGateway(http, _PAUSES_SECONDS),
        storage,
        handover.registration,
        tolerable_failed_checkpoints=handover.driver.tolerable_failed_checkpoints,
        savepoint_dir=handover.driver.savepoint_dir,
        data_inline_threshold=handover.driver.data_inline_threshold,
    )


def _hide_from_workers(spark: SparkSession) -> None:
    # In local mode Python workers inherit the environment of the JVM, which cannot change its own.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        context.environment[HANDOVER_VARIABLE] = ""


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
