"""Steps of a stage: restored if their fingerprint is unchanged, otherwise computed and written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError, UnsupportedStateError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.background_checkpoints import BackgroundCheckpoints, Capture
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.snapshots.live_snapshots import LiveSnapshot, StageSnapshots, Stopwatch
from airflow_provider_statecheck.spark.stage_costs import (
    AutoFacts,
    StageCosts,
    WriteTimes,
    disk_failures_named,
    require_room,
    shortage_of,
)
from airflow_provider_statecheck.spark.status_log import StepFigures, figures_or_none, readable_seconds
from airflow_provider_statecheck.state.progress import (
    BadPart,
    ItemBasis,
    Iterations,
    LoopProgress,
    NamedSnapshot,
    PartProgress,
    Scope,
    StepKey,
    describe,
    named_snapshots,
)
from airflow_provider_statecheck.storage.stored_json import decode_state, decoding, encode_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class StageState(MutableMapping[str, Any]):
    """
    Named values that are restored with their types.

    Supports the types of :func:`~airflow_provider_statecheck.storage.stored_json.encode_state`: numbers, text, bytes,
    dates, decimals and collections of these. Intended for cursors and counters, not for data.

    :raises UnsupportedStateError: if a value of another type is assigned.
    """

    def __init__(self, encoded: Any = None) -> None:
        with decoding("the named values of a stage"):
            self._values: dict[str, Any] = {} if encoded is None else dict(decode_state(encoded))

    def encode(self) -> Any:
        """
        Return the mapping as JSON.

        :raises UnsupportedStateError: if a value of an unsupported type was added to a collection in it.
        """
        return encode_state(self._values)

    @override
    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UnsupportedStateError(f"Expected the name of a state to be text, found {name!r}; use a str.")
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
    Holds the parts of a stage's state and takes checkpoints of them.

    :param restored: The restored checkpoint, ``None`` if the attempt started from the beginning.
    :param overhead_budget: Largest part of the time for checkpointing, ``None`` for no limit.
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
        """The run that computed the snapshots: this run, or the run of the restored savepoint."""
        self.state = StageState(saved.get("values"))
        self.progress = LoopProgress(saved.get("loops", ()), saved.get("bases", ()))
        self.iterations = Iterations(saved.get("iterations", ()))
        self.parts = PartProgress(saved.get("parts", ()))
        self.auto_facts = AutoFacts(saved.get("auto", ()))
        self.write_times = WriteTimes(saved.get("writes", ()))
        self.pace = pace
        self.costs = StageCosts(overhead_budget, monotonic, saved.get("costs"))
        attempt.work.checkpoint_share = lambda: self.costs.share
        self.snapshots = StageSnapshots(attempt.storage, attempt.grant.attempt, restored)
        self.figures = StepFigures(self.progress, self.iterations, monotonic)
        self.unsaved_bytes = 0
        """Size of the snapshots that no checkpoint references yet."""
        self.unsaved_seconds = 0.0
        """Measured or estimated time to write them."""
        self._saved = self._content() if restored else ((), _EMPTY_STATE)
        self._background: BackgroundCheckpoints | None = None

    def checkpoint(self) -> CheckpointRecord | None:
        """Take a checkpoint; return ``None`` if it failed and the failure is tolerated."""
        self.settle()
        if not self._copy_borrowed():
            return None
        content, before = self._content(), self.costs.spent_seconds
        with self.costs.timed():
            completed = self._attempt.take_checkpoint(self._checkpoint_content(content[1]))
        if completed is not None:
            self._saved, self.unsaved_bytes, self.unsaved_seconds = content, 0, 0.0
            self.pace.completed(self.costs.spent_seconds - before)
        return completed

    def checkpoint_after_work(self) -> None:
        """
        Take a checkpoint of what has just been finished.

        Where the answers of the coordinator take seconds, the stage computes on meanwhile. If it must end because of
        the checkpoint, the next checkpoint says so.
        """
        if not self._attempt.answers_late:
            self.checkpoint()
        elif self._copy_borrowed():
            content = self._content()
            self._take_back()
            capture = Capture(
                content=self._checkpoint_content(content[1]),
                compared=content,
                unsaved_bytes=self.unsaved_bytes,
                unsaved_seconds=self.unsaved_seconds,
            )
            self.unsaved_bytes, self.unsaved_seconds = 0, 0.0
            self._background = self._background or BackgroundCheckpoints(self._take_capture)
            self._background.offer(capture)
            self.pace.completed()

    def settle(self) -> None:
        """
        Wait for the checkpoints that are taken while the stage computes on.

        :raises StaleAttemptError: if a newer attempt has taken over.
        :raises CheckpointDeclinedError: if more checkpoints failed than are tolerated.
        :raises StoppedWithSavepointError: if a stop with a savepoint was requested.
        """
        if self._background is not None:
            with self.costs.timed():
                self._background.settle()
            self._take_back()

    def _take_back(self) -> None:
        for capture in self._background.withdraw() if self._background is not None else ():
            self.unsaved_bytes += capture.unsaved_bytes
            self.unsaved_seconds += capture.unsaved_seconds

    def _take_capture(self, capture: Capture) -> bool:
        completed = self._attempt.take_checkpoint(capture.content)
        if completed is not None:
            self._saved = capture.compared
        return completed is not None

    def _checkpoint_content(self, state: dict[str, Any]) -> CheckpointContent:
        snapshots = self.snapshots.handles
        return CheckpointContent(
            snapshots=snapshots,
            state=state | self._costs_and_run(),
            counts={"snapshots": len(named_snapshots(snapshots)), "items": self.progress.finished_items},
            summary=figures_or_none(self._summary),
            new_bytes=self.unsaved_bytes,
            pinned=self.snapshots.pinned,
        )

    def report_restored(self) -> None:
        """
        Report the restored steps for pages, if there are new ones; called before a computation, which may take hours.

        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        if self.figures.is_due():
            summary = figures_or_none(self.figures.of_restore)
            if summary is not None:
                self._attempt.work.report_restored(summary)

    def note_restored(self) -> None:
        """Let the end of the attempt report what it has restored."""
        self._attempt.work.restored = figures_or_none(self.figures.of_restore)

    @contextmanager
    def working_on(self, step: StepKey) -> Iterator[None]:
        """
        Let pages name a step, or an item of a loop, as the work of the block, and what was restored before.

        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        with self._attempt.work.on(describe(step)):
            self.report_restored()
            yield

    def _summary(self) -> CheckpointSummary:
        return self.figures.of_checkpoint(self.snapshots.handles, self.unsaved_seconds, self.parts)

    def _copy_borrowed(self) -> bool:
        try:
            self.unsaved_bytes += self.snapshots.copy_borrowed()
        except StorageError as error:
            self._attempt.failed(error)
            return False
        return True

    def is_saved(self) -> bool:
        """Return whether the last checkpoint contains the current state; measured costs are not compared."""
        return self._content() == self._saved

    def finish_item(self, loop: StepKey, item_key: str, seconds: float, basis: ItemBasis) -> None:
        """
        Record an item of ``each`` as finished; its steps and loops are dropped with the next checkpoint.

        :param seconds: Time of the item in this attempt.
        :param basis: What the item was finished with.
        """
        self.progress.finish(loop, item_key, seconds, basis)
        self.drop_scope((*loop[0], (loop[1], item_key)))

    def drop_scope(self, scope: Scope) -> None:
        """Drop the steps and loops inside a finished item or iteration."""
        self.snapshots.drop_scope(scope)
        self.progress.drop_scope(scope)
        self.iterations.drop_scope(scope)
        self.parts.drop_scope(scope)
        self.auto_facts.drop_scope(scope)

    def drop_unless_used(self) -> None:
        """Drop the restored steps that this attempt did not use."""
        self.snapshots.drop_unless_used()
        self.parts.keep({(handle.scope, handle.name) for handle in self.snapshots.handles})

    def _content(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        uris = tuple(handle.uri for handle in self.snapshots.handles)
        return uris, {
            "values": self.state.encode(),
            "loops": self.progress.encode(),
            "bases": self.progress.encode_bases(),
            "iterations": self.iterations.encode(),
            "parts": self.parts.encode(),
        }

    def _costs_and_run(self) -> dict[str, Any]:
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
    # A later run of a job recomputes all snapshots, unless the user asked to start from a savepoint.
    is_foreign = (restored.document.job_id, restored.document.operator_id) != (ref.job_id, ref.operator_id)
    is_chosen = is_foreign or restored.document.properties.is_savepoint
    return str(saved["of_snapshots"]) if is_chosen or saved["of_attempt"] == own else own


_EMPTY_STATE: dict[str, Any] = {key: [] for key in ("loops", "bases", "iterations", "parts")}
_EMPTY_STATE["values"] = StageState().encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Outcome of one step in this attempt."""

    name: str
    """Name with its items, such as ``days[2026-01-01]/sessions``."""
    is_restored: bool
    seconds: float
    """Time to compute and write the step, in the attempt that did so."""
    size_bytes: int
    rows: int | None
    write_seconds: float = 0.0
    """Measured or estimated time to write the step in this attempt; 0 for a restored step."""
    parts: int = 0
    """Number of finished parts of a step that is computed in parts; 0 for other steps."""
    restored_parts: int = 0
    """Number of these parts that an earlier attempt has computed."""
    bad_parts: tuple[BadPart, ...] = ()
    """Parts that failed and are left to a later attempt."""


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that this attempt wrote."""

    live: LiveSnapshot
    seconds: float
    """Measured or estimated time of the write, without the computation."""


class StageSteps(StageCheckpointer):
    """
    Restores, computes and writes steps, measures their costs, and takes the checkpoints that contain them.

    Loops, parts and automatic snapshots work through it.

    :param restored: The restored checkpoint, ``None`` if the attempt started from the beginning.
    :param overhead_budget: Largest part of the time for checkpointing, ``None`` for no limit.
    """

    def __init__(
        self,
        spark: SparkSession,
        attempt: StageAttempt,
        restored: RestoredStage | None,
        *,
        overhead_budget: float | None,
        pace: Pace,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(attempt, restored, overhead_budget=overhead_budget, pace=pace, monotonic=monotonic)
        self.spark = spark
        self._monotonic = monotonic
        self.reports: list[StepReport] = []
        # Snapshots are valid for one run only, even if the job continues in later runs.
        self._salts = [self.run]

    @contextmanager
    def within(self, fingerprint: str) -> Iterator[None]:
        """
        Include the fingerprint of a loop in the fingerprints of the steps inside it.

        The plan of such a step does not always depend on the code of the loop.
        """
        self._salts.append(fingerprint)
        try:
            yield
        finally:
            self._salts.pop()

    def fingerprint(self, build: DataFrame | Callable[..., object], version: str | None) -> str:
        """Return the fingerprint of a step's code, inputs and enclosing loops."""
        snapshots = self.snapshots.fingerprints()
        return step_fingerprint(build, version=version, snapshots=snapshots, salt="\n".join(self._salts))

    @property
    def salt(self) -> str:
        """The fingerprints of the enclosing loops, without the run."""
        return "\n".join(self._salts[1:])

    @property
    def verifies_fingerprints(self) -> bool:
        """Whether a step with another fingerprint is recomputed."""
        return self._attempt.grant.verify_fingerprints

    def restorable(self, step: StepKey, fingerprint: str, *, is_loop: bool = False) -> LiveSnapshot | None:
        """
        Return the snapshot of a step, ``None`` if there is none or the step has changed.

        :param is_loop: Whether the step is a loop, whose snapshot may be of an intermediate iteration.
        """
        live = self.snapshots.find(step)
        if live is None:
            return None
        is_other_kind = (self.iterations.find(step) is not None) is not is_loop
        has_changed = live.handle.fingerprint != fingerprint and self.verifies_fingerprints
        if is_other_kind or has_changed:
            log.warning("Step %s has changed since its snapshot was taken; it is recomputed.", describe(step))
            return None
        return live

    def require_room(self, step: StepKey) -> None:
        """
        Check that there is free space for the snapshot of a step, estimated by its last snapshot.

        :raises StorageError: if there is too little space.
        """
        last = self.snapshots.find(step)
        require_room(self._attempt.storage, describe(step), None if last is None else last.handle.size_bytes)

    def shortage(self, step: StepKey, size_bytes: int | None) -> str | None:
        """Return an error message if there is too little space for a step of a size, else ``None``."""
        return shortage_of(self._attempt.storage, describe(step), size_bytes)

    def compute(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> DataFrame:
        """
        Compute and write a step in one pass, and take a checkpoint.

        :raises StorageError: if there is too little space.
        """
        self.require_room(step)
        log.info("Step %s: computing", describe(step))
        with self.working_on(step):
            stopwatch = self.stopwatch()
            written = self.write(step, built(build), fingerprint, stopwatch)
        return self.save(step, written)

    def save(self, step: StepKey, written: Written) -> DataFrame:
        """Take a checkpoint that references a written step, and return the step, read from its snapshot."""
        self.iterations.forget(step)
        self.checkpoint_after_work()
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
        Write a step and count the time of the write.

        :param seconds_so_far: Stopwatch of the step, started before it was computed.
        :param is_computed: Whether the rows are already in Spark's cache: the write is then timed alone, and its time
            improves later estimates.
        :raises StorageError: if a disk is full or read-only.
        """
        stopwatch = self.stopwatch()
        with disk_failures_named(self._attempt.storage.base_uri):
            live = self.snapshots.write(step, frame, fingerprint, seconds_so_far)
        seconds, size = stopwatch(), live.handle.size_bytes
        if is_computed:
            self.write_times.observe(size, seconds)
        self.parts.forget(step)
        self.figures.computed(NamedSnapshot((live.handle,)))
        return Written(live, self._count(size, seconds, is_computed=is_computed))

    def count_part(self, step: StepKey, live: LiveSnapshot, seconds: float) -> float:
        """
        Count a part that was written, and return the estimated time of its write.

        :param seconds: Time of the step that the part took.
        """
        self.costs.parts += 1
        self.figures.computed(self._parts_of(step), self.parts.find(step))
        return self._count(live.handle.size_bytes, seconds, is_computed=False)

    def note_restored_parts(self, step: StepKey) -> None:
        """Record the parts of an unfinished step that an earlier attempt has computed."""
        if self.snapshots.parts(step):
            self.figures.restored(self._parts_of(step), self.parts.find(step))

    def report_parts(
        self,
        step: StepKey,
        *,
        is_restored: bool,
        restored_parts: int,
        write_seconds: float = 0.0,
        bad: tuple[BadPart, ...] = (),
    ) -> None:
        """
        Add a step that is computed in parts to the reports and log it.

        :param restored_parts: Number of parts that an earlier attempt has computed.
        """
        if not self.snapshots.parts(step):
            self.reports.append(
                StepReport(name=describe(step), is_restored=False, seconds=0.0, size_bytes=0, rows=None, bad_parts=bad)
            )
            return
        snapshot = self._parts_of(step)
        if not is_restored:
            self.figures.computed(snapshot, self.parts.find(step))
        self._add_report(snapshot, is_restored, write_seconds, restored_parts=restored_parts, bad_parts=bad)

    def _parts_of(self, step: StepKey) -> NamedSnapshot:
        return NamedSnapshot(tuple(live.handle for live in self.snapshots.parts(step).values()))

    def _count(self, size: int, seconds: float, *, is_computed: bool) -> float:
        spent = seconds if is_computed else self.write_times.part_of(seconds, size)
        self.costs.spent_seconds += spent
        self.unsaved_bytes += size
        self.unsaved_seconds += spent
        return spent

    def read(self, live: LiveSnapshot) -> DataFrame:
        """Return a DataFrame that reads a snapshot."""
        return self.snapshots.read(self.spark, live)

    def stopwatch(self, seconds_before: float = 0.0) -> Stopwatch:
        """Return a stopwatch that starts now, at ``seconds_before``."""
        begin = self._monotonic() - seconds_before
        return lambda: self._monotonic() - begin

    def report(self, step: StepKey, live: LiveSnapshot, *, is_restored: bool, write_seconds: float = 0.0) -> None:
        """Add a step to the reports and log it."""
        self._add_report(NamedSnapshot((live.handle,)), is_restored, write_seconds)

    def _add_report(self, snapshot: NamedSnapshot, is_restored: bool, write_seconds: float, **of_parts: Any) -> None:
        report = StepReport(
            name=describe((snapshot.scope, snapshot.name)),
            is_restored=is_restored,
            seconds=snapshot.seconds,
            size_bytes=snapshot.size_bytes,
            rows=snapshot.rows,
            write_seconds=round(write_seconds, 3),
            parts=snapshot.parts,
            **of_parts,
        )
        self.reports.append(report)
        size, duration = _size_text(report), readable_seconds(report.seconds)
        if is_restored:
            self.figures.restored(snapshot)
            log.info("Step %s restored: %s; saved %s", report.name, size, duration)
        else:
            log.info("Step %s computed in %s: %s%s", report.name, duration, size, _parts_text(report))


def _size_text(report: StepReport) -> str:
    rows = "" if report.rows is None else f"{counted(report.rows, 'row')}, "
    return f"{rows}{counted(report.size_bytes, 'byte')}"


def _parts_text(report: StepReport) -> str:
    if not report.parts:
        return ""
    restored = f", {report.restored_parts} of them restored" if report.restored_parts else ""
    bad = f", {len(report.bad_parts)} failed" if report.bad_parts else ""
    return f" in {counted(report.parts, 'part')}{restored}{bad}"


def built(build: object) -> DataFrame:
    """
    Return the DataFrame of a step.

    :param build: The DataFrame, or a callable that returns it.
    :raises InvalidConfigurationError: if it is not a DataFrame.
    """
    frame: Any = build() if callable(build) else build
    if not hasattr(frame, "schema") or not hasattr(frame, "write"):
        raise InvalidConfigurationError(
            f"Expected a step to return a Spark DataFrame, found {type(frame).__name__}; return the DataFrame from the "
            f"callable."
        )
    return cast("DataFrame", frame)
