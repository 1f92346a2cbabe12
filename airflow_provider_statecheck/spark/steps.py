"""The steps of a stage: found among the snapshots, or computed and written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.free_space import full_disk_named, require_room, shortage_of
from airflow_provider_statecheck.spark.fingerprints.step import step_fingerprint
from airflow_provider_statecheck.spark.readable import readable_seconds
from airflow_provider_statecheck.spark.saving import StageSaving
from airflow_provider_statecheck.spark.scope import StepKey, describe
from airflow_provider_statecheck.spark.snapshots.live import LiveSnapshot, Stopwatch
from airflow_provider_statecheck.spark.step_report import StepReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that this try wrote."""

    live: LiveSnapshot
    seconds: float
    """What writing took of the whole, as measured or estimated."""


class StageSteps:
    """
    Finds, computes and writes steps, and counts what that costs.

    :param spark: The session that computes.
    :param attempt: The registered try.
    :param saving: What the stage saves.
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self, spark: SparkSession, attempt: StageAttempt, saving: StageSaving, monotonic: Callable[[], float]
    ) -> None:
        self._spark = spark
        self._attempt = attempt
        self._monotonic = monotonic
        self.saving = saving
        self.reports: list[StepReport] = []
        # A pipeline's job lives on from run to run, its DataFrames belong to the run that computed them.
        self._salts = [saving.run]

    @contextmanager
    def within(self, fingerprint: str) -> Iterator[None]:
        """
        Let steps count as changed where what they are inside of changed, which their own plans need not show.

        :param fingerprint: Of the loop that they are inside of.
        """
        self._salts.append(fingerprint)
        try:
            yield
        finally:
            self._salts.pop()

    def fingerprint(self, build: DataFrame | Callable[..., object], version: str | None) -> str:
        """Return what tells a step from one that computes something else."""
        known = self.saving.snapshots.fingerprints()
        return step_fingerprint(build, version=version, snapshots=known, salt="\n".join(self._salts))

    def restorable(self, step: StepKey, fingerprint: str, *, is_loop: bool = False) -> LiveSnapshot | None:
        """
        Return the snapshot of a step, unless the step changed since it was taken.

        :param is_loop: Whether the step is a loop, whose snapshot may be one of its way.
        """
        live = self.saving.snapshots.find(step)
        if live is None:
            return None
        is_other_kind = (self.saving.iterations.find(step) is not None) is not is_loop
        has_changed = live.handle.fingerprint != fingerprint and self._attempt.grant.verify_fingerprints
        if is_other_kind or has_changed:
            log.warning("Step %s changed since its snapshot was taken; it is computed anew.", describe(step))
            return None
        return live

    def require_room(self, step: StepKey) -> None:
        """
        Refuse to begin a step whose snapshot will not fit, as far as its last one tells.

        :raises StorageError: if there is too little space.
        """
        before = self.saving.snapshots.find(step)
        require_room(self._attempt.storage, describe(step), None if before is None else before.handle.size_bytes)

    def shortage(self, step: StepKey, size_bytes: int | None) -> str | None:
        """Return why a step of some size would not fit, ``None`` where it does."""
        return shortage_of(self._attempt.storage, describe(step), size_bytes)

    def compute(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> DataFrame:
        """
        Compute a step while it is written, and take a checkpoint.

        :raises StorageError: if there is too little space.
        """
        self.require_room(step)
        stopwatch = self.stopwatch()
        written = self.write(step, built(build), fingerprint, stopwatch)
        return self.save(step, written)

    def save(self, step: StepKey, written: Written) -> DataFrame:
        """Take a checkpoint that names a written step, and return the step from its files."""
        self.saving.iterations.forget(step)
        self.saving.checkpoint()
        self.report(step, written.live, is_restored=False, write_seconds=written.seconds)
        return self.read(written.live)

    def write(
        self,
        step: StepKey,
        frame: DataFrame,
        fingerprint: str,
        seconds_so_far: Stopwatch,
        *,
        is_computed: bool = False,
    ) -> Written:
        """
        Write a step and count the part of it that was writing.

        :param is_computed: Whether Spark has the rows already, so that all of it is writing and there is to learn from.
        :raises StorageError: if the disk is full.
        """
        stopwatch = self.stopwatch()
        with full_disk_named(self._attempt.storage.base_uri):
            live = self.saving.snapshots.write(step, frame, fingerprint, seconds_so_far)
        seconds, size = stopwatch(), live.handle.size_bytes
        if is_computed:
            self.saving.write_times.observe(size, seconds)
        else:
            seconds = self.saving.write_times.part_of(seconds, size)
        self.saving.costs.spent_seconds += seconds
        self.saving.unsaved_bytes += size
        return Written(live, seconds)

    def read(self, live: LiveSnapshot) -> DataFrame:
        """Return a snapshot as a DataFrame whose plan starts at it."""
        return self.saving.snapshots.read(self._spark, live)

    def stopwatch(self, seconds_before: float = 0.0) -> Stopwatch:
        """Return a stopwatch that runs from now."""
        begin = self._monotonic() - seconds_before
        return lambda: self._monotonic() - begin

    def report(self, step: StepKey, live: LiveSnapshot, *, is_restored: bool, write_seconds: float = 0.0) -> None:
        """Add a step to the report and log it."""
        handle = live.handle
        report = StepReport(
            name=describe(step),
            is_restored=is_restored,
            seconds=handle.seconds,
            size_bytes=handle.size_bytes,
            rows=handle.rows,
            write_seconds=round(write_seconds, 3),
        )
        self.reports.append(report)
        what, seconds = f"{report.rows} rows, {report.size_bytes} bytes", readable_seconds(report.seconds)
        if is_restored:
            log.info("Step %s restored: %s; that saved %s", report.name, what, seconds)
        else:
            log.info("Step %s computed in %s: %s", report.name, seconds, what)


def built(build: object) -> DataFrame:
    """
    Return the DataFrame that a step gives.

    :param build: The DataFrame, or a callable that gives it.
    :raises InvalidConfigurationError: for anything else.
    """
    frame: Any = build() if callable(build) else build
    if not hasattr(frame, "schema") or not hasattr(frame, "write"):
        raise InvalidConfigurationError(
            f"Expected a step to give a Spark DataFrame, found {type(frame).__name__}; return the DataFrame from the callable."
        )
    return cast("DataFrame", frame)
