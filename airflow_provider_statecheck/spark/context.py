"""
The ``checkpoint`` object of a stage, also for drivers started by ``spark-submit``.

The DataFrame of a step is written once, and every later checkpoint references its snapshot. A later attempt reads the
snapshot instead of computing the step again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from airflow_provider_statecheck.checkpoint.codec import require, require_count
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.auto_snapshots import AutoSnapshots
from airflow_provider_statecheck.spark.checkpoint_interval import Rhythm, pace_of
from airflow_provider_statecheck.spark.driver.attempts import DriverHandover, begin_submitted, open_attempt
from airflow_provider_statecheck.spark.driver.mailbox import find_handover
from airflow_provider_statecheck.spark.driver.packages import check_driver_packages
from airflow_provider_statecheck.spark.endings import is_success, message_of
from airflow_provider_statecheck.spark.item_loop import ItemLoop
from airflow_provider_statecheck.spark.parts.parted_run import FAIL, PartedRun
from airflow_provider_statecheck.spark.refining_loop import Refinement, RefiningLoop
from airflow_provider_statecheck.spark.stage_costs import StageCosts, require_budget
from airflow_provider_statecheck.spark.steps import (
    StageState,
    StageSteps,
    StepReport as StepReport,
    built,
)
from airflow_provider_statecheck.state.progress import Scope, ScopedNames, StepKey, keyed
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.spark.connectors.source import Source


log = logging.getLogger(__name__)

Item = TypeVar("Item")


class StageContext:
    """
    Steps, loops, state and checkpoints of a stage.

    A context manager: a normal exit closes the attempt as finished, an error closes it as failed. An error that is no
    failure closes it as finished: ``AirflowSkipException`` in a task, or ``sys.exit(0)`` elsewhere. DataFrames of its
    steps are valid inside it; their files are kept until the attempt ends.

    :param spark: Session that computes the steps.
    :param attempt: The registered attempt.
    :param overhead_budget: Maximum share of a stage's time that checkpointing may take, above 0 and up to 1. Beyond it,
        optional checkpoints and snapshots are delayed. Without a value nothing is delayed.
    :param checkpoint_interval: Interval of periodic checkpoints, or ``auto``, which derives it from the cost of
        checkpoints and the failures of the job. Without a value, a loop takes a checkpoint after its configured number
        of items, and a stage with state after each increment. A bare number is milliseconds; text has a unit, such as
        ``5 min``.
    :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint. A bare number is
        milliseconds; text has a unit, such as ``5 min``.
    :param monotonic: Clock for durations, in seconds.
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
        self._attempt = attempt
        self._monotonic = monotonic
        with attempt.ending():
            pace = pace_of(attempt, checkpoint_interval, min_pause, monotonic)
            restored = attempt.restore()
        self.restored: CheckpointRecord | None = restored.checkpoint if restored else None
        """The checkpoint that this attempt restored; ``None`` if it started from the beginning."""
        self._steps = StageSteps(
            spark, attempt, restored, overhead_budget=overhead_budget, pace=pace, monotonic=monotonic
        )
        self.state: StageState = self._steps.state
        """Small values by name, saved with each checkpoint."""
        self.costs: StageCosts = self._steps.costs
        """Time spent on checkpointing, over all attempts."""
        self._names = ScopedNames()
        self._auto: AutoSnapshots | None = None
        self.steps: list[StepReport] = self._steps.reports
        """The steps that this attempt has restored or computed, in order."""

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        *,
        job: str,
        checkpoint_dir: str,
        metadata: str,
        uid: str | None = None,
        storage_options: dict[str, Any] | None = None,
        run: str = "script",
        num_retained: int = 2,
        retained_runs: int = 1,
        checkpoint_timeout_seconds: float = 600.0,
        tolerable_failed_checkpoints: int = -1,
        overhead_budget: float | None = None,
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
    ) -> Self:
        """
        Start an attempt in a notebook or a plain script, without Airflow.

        An attempt resumes after one that failed or was killed, and starts from the beginning after one that finished.
        If the program has configured no logging, its log lines are written to stderr.

        :param job: Name of the job, the unit of recovery.
        :param checkpoint_dir: Directory for checkpoints: a path or any fsspec URI that the Spark driver can reach.
        :param metadata: SQLAlchemy URL of the metadata database, such as ``sqlite:///state.db``; missing tables are
            created.
        :param uid: Name of this stage within the job, which owns its state and output. The default is ``stage``.
        :param storage_options: Options of the fsspec filesystem of ``checkpoint_dir``, such as credentials.
        :param run: Name of the run. A new run keeps ``state`` and finished items, but recomputes all snapshots.
        :param num_retained: Maximum number of completed checkpoints to retain, at least 1.
        :param retained_runs: Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``,
            for a job that continues from run to run. As many runs can be run again.
        :param checkpoint_timeout_seconds: Maximum time from the start of a checkpoint to its acknowledgement. The unit
            is seconds.
        :param tolerable_failed_checkpoints: Number of consecutive checkpoint failures that a stage tolerates before it
            fails; ``-1`` for no limit.
        :param overhead_budget: Maximum share of a stage's time that checkpointing may take, above 0 and up to 1. Beyond
            it, optional checkpoints and snapshots are delayed. Without a value nothing is delayed.
        :param checkpoint_interval: Interval of periodic checkpoints, or ``auto``, which derives it from the cost of
            checkpoints and the failures of the job. Without a value, a loop takes a checkpoint after its configured
            number of items, and a stage with state after each increment. A bare number is milliseconds; text has a
            unit, such as ``5 min``.
        :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint. A bare number
            is milliseconds; text has a unit, such as ``5 min``.
        :param savepoint_dir: Default directory for savepoints: any fsspec URI. A request can name another one.
        :param from_savepoint: Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it
            has no checkpoint of its own to restore; of a savepoint of a whole job, from the member with its uid.
        :param from_checkpoint: For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or
            ``before:<run>``, or a pointer.
        :param fork: Name of the fork, which is the job ``<job>@<fork>``. The default is the name of the run.
        :param claim_mode: Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner
            keeps it, with ``claim`` this job takes it over.
        :param renamed_uids: For a stage whose uid changed: the old uid and the new one. The stage takes over the
            operator of the old uid in its job, and a savepoint of it. Keep the argument as long as the job exists.
        :param allow_non_restored_state: Start with empty state if the savepoint belongs to other stages, or if the
            stage is new in a job from which another stage was removed.
        :param savepoint_at_end: Whether to take a savepoint when the stage has finished; needs a directory for
            savepoints.
        :param data_inline_threshold: Maximum size of a small value of a stage that is stored in the metadata of a
            checkpoint instead of a separate file, up to 1 MiB. A bare number is bytes; text has a unit: ``KiB``,
            ``MiB``, ``KB`` or ``MB``.
        :param allowed_locations: URIs where checkpoints and savepoints may reference files, in addition to the bucket
            or host (for local paths the directory) of ``checkpoint_dir``, ``savepoint_dir`` and a given pointer: a
            list, or text with commas. A reference to any other location is rejected before it is opened.
        :param on_clear: Behaviour of a cleared task: ``resume_unchanged`` keeps the steps whose code did not change
            (after a success, its run starts again), ``resume`` keeps every step, ``restart`` starts its run again. A
            script that starts again counts as a cleared task.
        :raises InvalidConfigurationError: for an argument out of range.
        :raises NoRestorableCheckpointError: if there are checkpoints but none is readable.
        :raises IncompatibleCheckpointError: if the savepoint is of another stage, or the uid is new in a job that has
            checkpoints under another uid.
        :raises SavepointClaimedError: if another job claimed the savepoint.
        """
        attempt, driver = open_attempt(
            spark,
            job=job,
            checkpoint_dir=checkpoint_dir,
            metadata=metadata,
            uid=uid,
            storage_options=storage_options,
            run=run,
            num_retained=num_retained,
            retained_runs=retained_runs,
            checkpoint_timeout_seconds=checkpoint_timeout_seconds,
            tolerable_failed_checkpoints=tolerable_failed_checkpoints,
            overhead_budget=overhead_budget,
            checkpoint_interval=checkpoint_interval,
            min_pause=min_pause,
            savepoint_dir=savepoint_dir,
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
        )
        return cls(spark, attempt, **driver.pacing)

    @classmethod
    def current(
        cls,
        spark: SparkSession | None = None,
        *,
        mailbox: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """
        Return the context of an application that ``CheckpointedSparkSubmitOperator`` submitted.

        The first call connects to the coordinator and restores; later calls return the same context.

        :param spark: Session that computes the steps; by default the running one, else a new one.
        :param mailbox: URI of the mailbox; by default it is in the environment, in the property
            ``spark.statecheck.mailbox`` or in the argument ``--statecheck-mailbox`` of the application.
        :param storage_options: Options of the fsspec filesystem of the mailbox, such as credentials; by default those
            of the environment are used.
        :raises EnvironmentNotReadyError: if no Airflow operator submitted this driver, or a package is missing.
        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises NoRestorableCheckpointError: if there are checkpoints but none is readable.
        """
        return cast("Self", CURRENT.get(cls, spark, mailbox, storage_options))

    def snapshot(
        self,
        name: str,
        build: DataFrame | Callable[..., DataFrame],
        *,
        over: DataFrame | Source | None = None,
        when: bool | Literal["auto"] = True,
        version: str | None = None,
        on_bad_part: Literal["fail", "quarantine"] = "fail",
    ) -> DataFrame:
        """
        Return the DataFrame of a step: from its snapshot if there is one, else computed, written and read.

        The result equals the DataFrame, except for nullability and the order of rows. A step is recomputed if its code
        has changed, or that of a step it depends on.

        With ``over``, the step is computed in parts: ``build`` is applied to some files or rows of ``over`` at a time,
        finished parts are saved with checkpoints, and a retry computes only the other parts. ``build`` must work row by
        row: project, filter, explode, call Python functions, and join other data to the rows. Other plans are refused
        before any work. Actions inside ``build`` and state that a function keeps from one batch to the next cannot be
        detected; do not use them.

        :param name: Name of the step, unique in its scope.
        :param build: The DataFrame, or a callable that returns it and is not called if the step is restored. With
            ``over``, a function of a DataFrame with some rows of ``over``.
        :param over: Input of a step that is computed in parts: the DataFrame of an earlier snapshot, a source of this
            package, or a DataFrame that only reads files, such as ``spark.read.parquet(path)``.
        :param when: ``True`` (default) writes the step; ``False`` computes it in each attempt and never writes it;
            ``"auto"`` computes it into Spark's cache and writes it only if recomputing it would take longer.
        :param version: Change it if the result changes for a reason outside the code.
        :param on_bad_part: What happens if a part fails: ``fail`` (default) ends the step at once; ``quarantine``
            computes the other parts first, so that a retry computes only the failed ones.
        :raises InvalidConfigurationError: for any other ``when`` or ``on_bad_part``, or a combination that has no
            effect.
        :raises DuplicateNameError: if the name is used twice in one scope.
        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises UnsupportedPlanError: if the step cannot be computed in parts; the message names the operation.
        :raises PartFailedError: if parts failed; the message names their files and rows.
        :raises SourceChangedError: if ``over`` has changed since the first attempt.
        :raises StorageError: if the disk is full or has too little free space.
        """
        require("when", when, lambda each: isinstance(each, bool) or each == "auto", "True, False or 'auto'")
        _require_fitting(over, when, on_bad_part)
        with self._claimed(name) as step:
            if over is not None:
                return self._in_parts(step, build, over, version, on_bad_part)
            return self._whole(step, build, when, version)

    def _whole(self, step: StepKey, build: Any, when: bool | Literal["auto"], version: str | None) -> DataFrame:
        if when is False:
            self._steps.figures.skipped(step)
            return built(build)
        fingerprint = self._steps.fingerprint(build, version)
        live = self._steps.restorable(step, fingerprint)
        if live is not None:
            self._steps.report(step, live, is_restored=True)
            return self._steps.read(live)
        if when == "auto":
            self._auto = self._auto or AutoSnapshots(self._steps)
            return self._auto.take(step, build, fingerprint)
        return self._steps.compute(step, build, fingerprint)

    def _in_parts(
        self, step: StepKey, build: Any, over: DataFrame | Source, version: str | None, on_bad_part: str
    ) -> DataFrame:
        self._steps.require_room(step)
        return PartedRun(self._steps, step, build, over, version=version, on_bad_part=on_bad_part).result()

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
        Refine a DataFrame iteratively and return the result, read from its snapshot.

        ``ranks = checkpoint.iterate("ranks", start, 20, every=5, step=lambda ranks, number: spread(ranks, links))``.

        After ``every`` steps the DataFrame is written, which keeps plans short, and a checkpoint is taken; a retry
        resumes from it. Steps in between are lazy. Only the newest snapshot is kept: a DataFrame that was passed to
        ``step`` or ``until`` is readable until the snapshot after the next one is written.

        A larger number of steps resumes from the last checkpoint. The loop restarts if the number is smaller, if
        ``step``, ``initial`` or ``until`` changed, or if ``every`` changed and there is an ``until``.

        :param name: Name of the loop, unique in its scope. Each call of ``step`` has its own scope of names.
        :param initial: DataFrame before the first step, or a callable that returns it and is not called on a restore.
        :param steps: Largest number of steps.
        :param every: Number of steps after which the DataFrame is written; it is also written after the last step.
        :param step: Function of the DataFrame and the number of the step, counted from 1, that returns the next
            DataFrame.
        :param until: Function of the DataFrame and the one ``every`` steps before that returns whether the loop has
            converged.
        :param version: Change it if the result changes for a reason outside the code.
        :raises InvalidConfigurationError: for an argument out of range.
        :raises DuplicateNameError: if the name is used twice in one scope.
        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises StorageError: if the disk is full or has too little free space.
        """
        refinement = Refinement(initial=initial, steps=steps, every=every, step=step, until=until, version=version)
        with self._claimed(name) as loop:
            return RefiningLoop(self._steps, self._names, loop, refinement, self._release).result()

    def each(
        self,
        name: str,
        items: Iterable[Item],
        *,
        key: Callable[[Item], Any] | None = None,
        every: int = 1,
        every_seconds: float | None = None,
        version: str | None = None,
    ) -> Iterator[Item]:
        """
        Yield the items that are not finished yet.

        An item is finished when the loop requests the next one, and durable with the next checkpoint. Side effects of
        the body are therefore at least once. Each item has its own scope of step names. Use it directly in a ``for``
        statement: an iterator in a variable that is left by ``break`` keeps the scope of its item open.

        A finished item is worked on again if the body of the ``for`` statement, code that it calls, or a DataFrame that
        it uses has changed. The other statements around the loop count as far as they define what the body reads. Items
        of earlier runs of a job are kept, with a warning if the body has changed.

        :param name: Name of the loop, unique in its scope.
        :param items: Items of this attempt; they may differ from those of the last attempt.
        :param key: Function that returns the identity of an item; by default, text, whole numbers, dates and UUIDs
            identify themselves.
        :param every: Number of finished items after which a checkpoint is taken.
        :param every_seconds: Age of the loop's last checkpoint after which one is taken too.
        :param version: Change it to work on all items again, if their result changes for a reason outside the code.
        :raises InvalidConfigurationError: for an item without a key or ``every`` below 1.
        :raises DuplicateNameError: if the name is already used or two items have the same key.
        """
        every = require_count("every", every)
        require("every_seconds", every_seconds, lambda age: age is None or age >= 0, "a number of seconds, 0 or more")
        pairs = keyed(items, key)
        rhythm = partial(Rhythm, every, every_seconds, self.costs, self._steps.pace, self._monotonic)
        loop = ItemLoop(
            self._steps,
            self._names,
            self._names.claim(name),
            version=version,
            context=self,
            release=self._release,
        )
        return loop.items(pairs, rhythm, self._monotonic)

    def checkpoint(self) -> CheckpointRecord | None:
        """
        Take a checkpoint now.

        :return: The completed checkpoint; ``None`` if it failed and the failure is tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over; this one must stop.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        return self._steps.checkpoint()

    def is_restored(self) -> bool:
        """Return whether this attempt restored a checkpoint."""
        return self.restored is not None

    def finish(self) -> None:
        """Drop steps that the attempt did not use, take a last checkpoint if there are changes, and close it."""
        self._steps.drop_unless_used()
        self._finish()

    def _finish(self, message: str = "") -> None:
        self._steps.settle()
        if not self._steps.is_saved():
            self.checkpoint()
        self._steps.note_restored()
        self._attempt.finish(AttemptStatus.FINISHED, message)
        self._close()

    def fail(self, error: BaseException) -> None:
        """
        Close the attempt as failed, and report damaged snapshots and the retained checkpoint.

        :param error: Cause of the failure.
        """
        self._settle_before(error)
        damaged = self._steps.snapshots.damage_behind(error)
        for uri, problem in damaged.items():
            log.error("Snapshot %s is damaged; the next try recomputes it: %s", redact(uri), problem)
        self._steps.note_restored()
        self._attempt.fail(error, tuple(damaged))
        self._close()

    def _settle_before(self, error: BaseException) -> None:
        # A checkpoint that is about to complete saves work, and its error must not hide the cause. The savepoint with
        # which the job stops is not waited for.
        self._attempt.release()
        try:
            self._steps.settle()
        except Exception as settling:
            if settling is not error:
                log.warning("The last checkpoint failed: %s", settling)

    def kept(self) -> str:
        """Return a line about the checkpoint that a retry restores."""
        return self._attempt.kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not is_success(error):
            self.fail(error)
            return
        try:
            if error is None:
                self.finish()
            else:
                # The steps behind the skip or exit were not used, but they are not dropped: they may be used after a
                # clear.
                self._finish(message_of(error))
        except BaseException as failure:
            self.fail(failure)
            raise

    @contextmanager
    def _claimed(self, name: object) -> Iterator[StepKey]:
        step = self._names.claim(name)
        try:
            yield step
        except BaseException:
            # The caller may catch the error and compute the step again.
            self._names.used.discard(step)
            raise

    def _close(self) -> None:
        self.costs.report()
        self._release()

    def _release(self, scope: Scope = ()) -> None:
        if self._auto is not None:
            self._auto.release(scope)


def _require_fitting(over: object, when: object, on_bad_part: str) -> None:
    if over is None and on_bad_part != FAIL:
        raise InvalidConfigurationError(
            f"Expected on_bad_part only for a step that is computed in parts, found {on_bad_part!r} without over; set "
            "over."
        )
    if over is not None and when is not True:
        raise InvalidConfigurationError(
            f"Expected a step with over to be written, found when={when!r}; leave when out."
        )


class CurrentContext:
    """Creates the context of a submitted driver at the first call; a handover is valid for one context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handover: DriverHandover | None = None
        self._context: StageContext | None = None

    def get(
        self,
        kind: type[StageContext],
        spark: SparkSession | None,
        mailbox: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> StageContext:
        """
        Return the context of this process.

        :param kind: Class of the context to create.
        :param spark: Session that computes the steps; by default the running one, else a new one.
        :param mailbox: URI of the mailbox, if the application names it.
        :param storage_options: Options of the filesystem of the mailbox.
        :raises EnvironmentNotReadyError: if no Airflow operator submitted this driver, or a package is missing.
        """
        with self._lock:
            if self._context is None:
                check_driver_packages()
                # A call after a failed one must find the handover again.
                self._handover = self._handover or find_handover(spark, mailbox, storage_options)
                session, attempt = begin_submitted(self._handover, spark)
                self._context = kind(session, attempt, **self._handover.driver.pacing)
            return self._context


CURRENT = CurrentContext()
