"""
What a stage gets to work with: ``checkpoint``.

A step's DataFrame is written once and named by every later checkpoint; a try that finds it takes it from there instead
of computing it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StaleAttemptError, StateCheckError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from airflow_provider_statecheck.spark.kept import kept_line
from airflow_provider_statecheck.spark.progress import LoopProgress, keyed
from airflow_provider_statecheck.spark.scope import ScopedNames, StepKey, describe
from airflow_provider_statecheck.spark.snapshots import LiveSnapshot, StageSnapshots, Stopwatch
from airflow_provider_statecheck.spark.state import StageState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What became of one step in this try."""

    name: str
    """With its items: ``days[2026-01-01]/sessions``."""
    is_restored: bool
    seconds: float
    """What computing and writing it took, in the try that did so."""
    size_bytes: int
    rows: int | None


class StageContext:
    """
    A stage's view of its checkpoints.

    Use it as a context manager: leaving it normally closes the attempt as finished, leaving it by an error as failed.
    Its DataFrames are meant for use inside; their files stay until the attempt ends.

    :param spark: The session that computes.
    :param attempt: The registered try.
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self, spark: SparkSession, attempt: StageAttempt, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._attempt = attempt
        self._monotonic = monotonic
        restored = attempt.restore()
        saved = restored.state if restored else {}
        self.restored: CheckpointRecord | None = restored.checkpoint if restored else None
        """The checkpoint that this try started from; ``None`` for a fresh start."""
        self.state = StageState(saved.get("values"))
        """Small values by name, saved with each checkpoint."""
        self._progress = LoopProgress(saved.get("loops", ()))
        self._snapshots = StageSnapshots(attempt.storage, attempt.grant.attempt, restored)
        self._names = ScopedNames()
        self._unsaved_bytes = 0
        self._saved = self._content() if restored else None
        self.steps: list[StepReport] = []
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
        storage_options: dict[str, Any] | None = None,
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
        :param storage_options: Options of the fsspec filesystem.
        :raises InvalidConfigurationError: for an argument out of range.
        :raises NoRestorableCheckpointError: if there was state and none of it can be read.
        """
        from airflow_provider_statecheck.spark.script import open_attempt

        attempt = open_attempt(
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
        )
        return cls(spark, attempt)

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
        from airflow_provider_statecheck.spark.current import CURRENT

        return cast("Self", CURRENT.get(cls, spark))

    def snapshot(
        self,
        name: str,
        build: DataFrame | Callable[[], DataFrame],
        *,
        when: bool = True,
        version: str | None = None,
    ) -> DataFrame:
        """
        Return a step's DataFrame, from its snapshot where there is one, else computed, written and read back.

        The result equals the DataFrame up to nullability and the order of rows. A step whose code changed since, or
        that was built from one that changed, is computed anew.

        :param name: Name of the step, unique in its scope.
        :param build: The DataFrame, or a callable that gives it and is not called when the step is restored.
        :param when: ``False`` lets a cheap step opt out: it is computed in each try and never written.
        :param version: Change it where the result changes for a reason that the code does not show.
        :raises DuplicateNameError: if the name is used twice in one scope.
        :raises UnsupportedStateError: for a DataFrame that could not be restored equal.
        """
        step = self._names.claim(name)
        if not when:
            return _built(build)
        fingerprint = self._fingerprint(build, version)
        live = self._restorable(step, fingerprint)
        if live is None:
            live = self._compute(step, build, fingerprint)
            self._report(step, live, is_restored=False)
        else:
            self._report(step, live, is_restored=True)
        return self._snapshots.read(self._spark, live)

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
        if every < 1:
            raise InvalidConfigurationError(f"Expected every to be at least 1, found {every}.")
        pairs = keyed(items, key)
        return self._iterate(self._names.claim(name), pairs, every, every_seconds)

    def checkpoint(self) -> CheckpointRecord | None:
        """
        Take a checkpoint now.

        :return: The completed checkpoint; ``None`` if it failed and failures are tolerated.
        :raises StaleAttemptError: if a newer attempt has taken over; this one must stop.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        """
        content = self._content()
        completed = self._attempt.take_checkpoint(
            self._snapshots.handles,
            content[1],
            finished_items=self._progress.finished_items,
            new_bytes=self._unsaved_bytes,
            pinned=self._snapshots.pinned,
        )
        if completed is not None:
            self._saved, self._unsaved_bytes = content, 0
        return completed

    def is_restored(self) -> bool:
        """Tell whether this try started from a checkpoint."""
        return self.restored is not None

    def finish(self) -> None:
        """Save what is not saved yet and close the attempt; steps of earlier tries that nobody asked for are dropped."""
        self._snapshots.drop_unless_used()
        if self._content() != (self._saved or ((), _NOTHING)):
            self.checkpoint()
        self._attempt.finish(AttemptStatus.FINISHED)

    def fail(self, error: BaseException) -> None:
        """Close the attempt as failed and say in one line what was kept."""
        try:
            self._attempt.finish(AttemptStatus.FAILED, f"{type(error).__name__}: {error}")
        except StaleAttemptError as stale:
            log.warning("%s", stale)
        except StateCheckError as closing:
            log.warning("The attempt could not be closed, the next one will fence it: %s", closing)
        log.error("%s", self.kept())

    def kept(self) -> str:
        """Say what a retry will find."""
        return kept_line(self._attempt.registration, self._attempt.latest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.fail(error)

    def _iterate(
        self, loop: StepKey, pairs: list[tuple[str, Item]], every: int, every_seconds: float | None
    ) -> Iterator[Item]:
        unsaved, last = 0, self._monotonic()
        for item_key, item in pairs:
            if self._progress.is_finished(loop, item_key):
                continue
            with self._names.inside(loop[1], item_key) as scope:
                yield item
            self._progress.finish(loop, item_key)
            self._snapshots.drop_scope(scope)
            unsaved += 1
            if unsaved >= every or (every_seconds is not None and self._monotonic() - last >= every_seconds):
                self.checkpoint()
                unsaved, last = 0, self._monotonic()
        if unsaved:
            self.checkpoint()

    def _fingerprint(self, build: DataFrame | Callable[[], DataFrame], version: str | None) -> str:
        # A pipeline's job lives on from run to run, its DataFrames belong to the run that computed them.
        run_key = self._attempt.registration.owner.run_key
        return step_fingerprint(build, version=version, snapshots=self._snapshots.fingerprints(), salt=run_key)

    def _restorable(self, step: StepKey, fingerprint: str) -> LiveSnapshot | None:
        live = self._snapshots.find(step)
        if live is None:
            return None
        if live.handle.fingerprint != fingerprint and self._attempt.grant.verify_fingerprints:
            log.warning("Step %s changed since its snapshot was taken; it is computed anew.", describe(step))
            return None
        return live

    def _compute(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> LiveSnapshot:
        stopwatch = self._stopwatch()
        live = self._snapshots.write(step, _built(build), fingerprint, stopwatch)
        self._unsaved_bytes += live.handle.size_bytes
        self.checkpoint()
        return live

    def _stopwatch(self) -> Stopwatch:
        begin = self._monotonic()
        return lambda: self._monotonic() - begin

    def _report(self, step: StepKey, live: LiveSnapshot, *, is_restored: bool) -> None:
        handle = live.handle
        report = StepReport(
            name=describe(step),
            is_restored=is_restored,
            seconds=handle.seconds,
            size_bytes=handle.size_bytes,
            rows=handle.rows,
        )
        self.steps.append(report)
        log.info(
            "Step %s %s: %s rows, %s bytes, %s s",
            report.name,
            "restored" if is_restored else "computed",
            report.rows,
            report.size_bytes,
            report.seconds,
        )

    def _content(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        uris = tuple(handle.uri for handle in self._snapshots.handles)
        return uris, {"values": self.state.encode(), "loops": self._progress.encode()}


_NOTHING: dict[str, Any] = {"values": StageState().encode(), "loops": []}


def _built(build: DataFrame | Callable[[], DataFrame]) -> DataFrame:
    frame = build() if callable(build) else build
    if not hasattr(frame, "schema") or not hasattr(frame, "write"):
        raise InvalidConfigurationError(
            f"Expected a step to give a Spark DataFrame, found {type(frame).__name__}; return the DataFrame from the callable."
        )
    return frame
