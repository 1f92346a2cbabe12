"""Steps of a stage: restored from a snapshot, or computed and written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.free_space import full_disk_named, require_room, shortage_of
from airflow_provider_statecheck.spark.costs.pacing import Pace
from airflow_provider_statecheck.spark.costs.stage_costs import AutoFacts, StageCosts, WriteTimes
from airflow_provider_statecheck.spark.fingerprints.step import step_fingerprint
from airflow_provider_statecheck.spark.loop_progress import Iterations, LoopProgress
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.scope import Scope, StepKey, describe
from airflow_provider_statecheck.spark.snapshots.live_snapshots import LiveSnapshot, StageSnapshots, Stopwatch
from airflow_provider_statecheck.spark.status_log import readable_seconds
from airflow_provider_statecheck.storage.state_codec import decode_state, encode_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StageState(MutableMapping[str, Any]):
    """
    Values by name, restored exactly as they were, types included.

    Holds what :func:`~airflow_provider_statecheck.storage.state_codec.encode_state` can save: numbers, text, bytes,
    dates, decimals and collections of these. It is meant for cursors and counters, not for data.

    :raises UnsupportedStateError: on assignment of anything else.
    """

    def __init__(self, encoded: Any = None) -> None:
        self._values: dict[str, Any] = {} if encoded is None else decode_state(encoded)

    def encode(self) -> Any:
        """
        Return the mapping as JSON.

        :raises UnsupportedStateError: if a collection in it was changed to hold something that cannot be saved.
        """
        return encode_state(self._values)

    @override
    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UnsupportedStateError(f"Expected the name of a state to be text, found {name!r}.")
        encode_state({name: value})
        self._values[name] = value

    @override
    def __delitem__(self, name: str) -> None:
        del self._values[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    @override
    def __len__(self) -> int:
        return len(self._values)

    @override
    def __repr__(self) -> str:
        return f"StageState({', '.join(sorted(self._values))})"


class StageCheckpointer:
    """
    The parts of a stage's state, and the checkpoints that hold them.

    :param attempt: The registered try.
    :param restored: What it started from.
    :param overhead_budget: Which part of the time checkpointing may take.
    :param pace: How soon after a checkpoint the next one may be taken by itself.
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self,
        attempt: StageAttempt,
        restored: RestoredStage | None,
        *,
        overhead_budget: float | None,
        pace: Pace,
        monotonic: Callable[[], float],
    ) -> None:
        saved = restored.state if restored else {}
        self._attempt = attempt
        self.run = _run_of(attempt, restored)
        """The run whose snapshots these are: this one, or the one whose savepoint it began from."""
        self.state = StageState(saved.get("values"))
        self.progress = LoopProgress(saved.get("loops", ()))
        self.iterations = Iterations(saved.get("iterations", ()))
        self.auto_facts = AutoFacts(saved.get("auto", ()))
        self.write_times = WriteTimes(saved.get("writes", ()))
        self.pace = pace
        self.costs = StageCosts(overhead_budget, monotonic, saved.get("costs"))
        self.snapshots = StageSnapshots(attempt.storage, attempt.grant.attempt, restored)
        self.unsaved_bytes = 0
        """Of snapshots that no checkpoint names yet."""
        self._saved = self._content() if restored else ((), _NOTHING)

    def checkpoint(self) -> CheckpointRecord | None:
        """Take a checkpoint; ``None`` if it failed and failures are tolerated."""
        if not self._own_borrowed():
            return None
        content, before = self._content(), self.costs.spent_seconds
        with self.costs.timed():
            completed = self._attempt.take_checkpoint(
                self.snapshots.handles,
                content[1] | self._knowledge(),
                finished_items=self.progress.finished_items,
                new_bytes=self.unsaved_bytes,
                pinned=self.snapshots.pinned,
            )
        if completed is not None:
            self._saved, self.unsaved_bytes = content, 0
            self.pace.completed(self.costs.spent_seconds - before)
        return completed

    def _own_borrowed(self) -> bool:
        try:
            self.unsaved_bytes += self.snapshots.copy_borrowed()
        except StorageError as error:
            self._attempt.failed(error)
            return False
        return True

    def is_saved(self) -> bool:
        """Tell whether the last checkpoint holds all that a retry needs; what was learned of costs does not count."""
        return self._content() == self._saved

    def finish_item(self, loop: StepKey, item_key: str) -> None:
        """Record an item of ``each`` as finished; what belongs to it goes with the next checkpoint."""
        self.progress.finish(loop, item_key)
        self.drop_scope((*loop[0], (loop[1], item_key)))

    def drop_scope(self, scope: Scope) -> None:
        """Let go what belongs to an item or a step that is behind."""
        self.snapshots.drop_scope(scope)
        self.progress.drop_scope(scope)
        self.iterations.drop_scope(scope)
        self.auto_facts.drop_scope(scope)

    def _content(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        uris = tuple(handle.uri for handle in self.snapshots.handles)
        return uris, {
            "values": self.state.encode(),
            "loops": self.progress.encode(),
            "iterations": self.iterations.encode(),
        }

    def _knowledge(self) -> dict[str, Any]:
        return {
            "costs": self.costs.encode(),
            "writes": self.write_times.encode(),
            "auto": self.auto_facts.encode(),
            "run": {"of_snapshots": self.run, "of_attempt": self._attempt.registration.owner.run_key},
        }


def _run_of(attempt: StageAttempt, restored: RestoredStage | None) -> str:
    own = attempt.registration.owner.run_key
    if restored is None or "run" not in restored.state:
        return own
    saved, ref = restored.state["run"], attempt.grant.attempt
    # A later run of a job computes its snapshots anew. One that begins from a savepoint was told to go on with them.
    is_foreign = (restored.document.job_id, restored.document.operator_id) != (ref.job_id, ref.operator_id)
    is_begun_from = is_foreign or restored.document.properties.is_savepoint
    return str(saved["of_snapshots"]) if is_begun_from or saved["of_attempt"] == own else own


_NOTHING: dict[str, Any] = {"values": StageState().encode(), "loops": [], "iterations": []}


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
    write_seconds: float = 0.0
    """What writing it took in this try, as measured or estimated; 0 for a step that was restored."""


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
        self, spark: SparkSession, attempt: StageAttempt, saving: StageCheckpointer, monotonic: Callable[[], float]
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
