"""
A step that is computed in parts, in one try: it resumes, computes the rest and reports.

The progress of a step follows from its live parts: a part that is damaged or that no checkpoint references is computed
again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.fingerprints.step import combined_fingerprint
from airflow_provider_statecheck.spark.parts.part_inputs import PartInput
from airflow_provider_statecheck.spark.parts.part_jobs import PartBuilder, PartJobs, bad_text, failure_of
from airflow_provider_statecheck.spark.sources.enumerator import ItemEnumerator, moved_pieces, state_after
from airflow_provider_statecheck.spark.steps import StageSteps
from airflow_provider_statecheck.state.loop_progress import StepKey, describe
from airflow_provider_statecheck.state.part_progress import PartedStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FAIL, QUARANTINE = "fail", "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedWork:
    """
    Definition of a step that is computed in parts; the fields are arguments of ``checkpoint.snapshot``.

    :raises InvalidConfigurationError: for an invalid argument.
    """

    build: Callable[[DataFrame], DataFrame]
    input: PartInput
    fingerprint: str
    """Fingerprint of ``build``."""
    on_bad_part: str = FAIL

    def __post_init__(self) -> None:
        build: Any = self.build
        if not callable(build) or hasattr(build, "write"):
            raise InvalidConfigurationError(
                f"Expected a function of one DataFrame for a step with over, found {type(build).__name__}; pass a function "
                f"such as lambda rows: rows.mapInPandas(...)."
            )
        if self.on_bad_part not in (FAIL, QUARANTINE):
            raise InvalidConfigurationError(
                f"Expected on_bad_part to be 'fail' or 'quarantine', found {self.on_bad_part!r}."
            )

    @property
    def digest(self) -> str:
        """Return the fingerprint of the step: its code and its input."""
        return combined_fingerprint(self.fingerprint, self.input.fingerprint, "over")


class PartedRun:
    """
    Execution of a step in one try.

    :param spark: Session that computes the parts.
    :param steps: Reader and writer of steps.
    :param step: Key of the step.
    :param work: Definition of the step.
    :param storage_options: Options of the filesystem with which a source lists its files.
    """

    def __init__(
        self,
        spark: SparkSession,
        steps: StageSteps,
        step: StepKey,
        work: PartedWork,
        storage_options: Mapping[str, Any],
    ) -> None:
        self._spark = spark
        self._steps = steps
        self._saving = steps.saving
        self._snapshots = steps.saving.snapshots
        self._step = step
        self._work = work
        self._options = storage_options

    def result(self) -> DataFrame:
        """Return the DataFrame of the step, read from the snapshots of its parts."""
        known = self._known()
        if known is not None and self._is_complete(known):
            self._steps.report_parts(self._step, is_restored=True, restored_parts=len(known.finished))
            return self._snapshots.read_parts(self._spark, self._step)
        enumerator, start = self._open(known)
        self._saving.report_restored()
        self._finish(self._compute(enumerator, start), restored_parts=len(start.finished))
        return self._snapshots.read_parts(self._spark, self._step)

    def _known(self) -> PartedStep | None:
        known = self._saving.parts.find(self._step)
        if known is None:
            return None
        if known.fingerprint != self._work.digest and self._steps.verifies_fingerprints:
            log.warning("Step %s has changed since its parts were computed; it is recomputed.", self._name)
            return None
        return known.limited_to(self._snapshots.parts(self._step).keys())

    def _is_complete(self, known: PartedStep) -> bool:
        parts = self._snapshots.parts(self._step)
        return bool(parts) and all(live.handle.of_parts == len(known.finished) for live in parts.values())

    def _open(self, known: PartedStep | None) -> tuple[ItemEnumerator, PartedStep]:
        if known is not None:
            try:
                return self._resume(known)
            except SourceRestartRequiredError as error:
                log.warning("Step %s is recomputed: %s", self._name, error)
        self._snapshots.drop(self._step)
        self._saving.iterations.forget(self._step)
        enumerator = self._source(None)
        return enumerator, PartedStep(fingerprint=self._work.digest, listed=enumerator.snapshot())

    def _resume(self, known: PartedStep) -> tuple[ItemEnumerator, PartedStep]:
        listed = {**known.listed, "increments": known.last_number}
        enumerator = self._source(state_after(listed, known.finished.values()))
        self._snapshots.keep_parts(self._step, known.finished.keys())
        if known.bad:
            log.info("Step %s runs again what failed before: %s", self._name, "; ".join(map(bad_text, known.bad)))
        start = replace(
            _as_listed(known, enumerator), fingerprint=self._work.digest, bad=(), share=enumerator.finished_share
        )
        self._saving.parts.record(self._step, start)
        self._steps.note_restored_parts(self._step)
        return enumerator, start

    def _source(self, restored: Mapping[str, Any] | None) -> ItemEnumerator:
        source = self._work.input.source
        enumerator = source.open(self._spark, restored, storage_options=self._options)
        if not isinstance(enumerator, ItemEnumerator):
            raise InvalidConfigurationError(
                f"Expected a source of this package as the input of step {self._name}, found {type(source).__name__}; read it "
                f"into a snapshot before, and pass that as over."
            )
        return enumerator

    def _compute(self, enumerator: ItemEnumerator, start: PartedStep) -> PartJobs:
        builder = PartBuilder(self._work.build, self._name, self._snapshots.parts(self._step).values())
        jobs = PartJobs(
            self._spark,
            self._steps,
            self._step,
            enumerator,
            builder,
            start,
            fails_at_once=self._work.on_bad_part == FAIL,
        )
        jobs.run()
        if not jobs.parted.finished and not jobs.parted.bad:
            self._write_empty(jobs)
        return jobs

    def _write_empty(self, jobs: PartJobs) -> None:
        if self._work.input.frame is None:
            raise InvalidConfigurationError(
                f"Expected rows in the source of step {self._name}, found none; skip the step if there is nothing to read."
            )
        jobs.write_empty(self._work.input.frame)

    def _finish(self, jobs: PartJobs, *, restored_parts: int) -> None:
        bad = jobs.parted.bad
        if not bad:
            self._snapshots.complete_parts(self._step)
        jobs.save(is_end=True)
        report = functools.partial(self._steps.report_parts, self._step, is_restored=False, bad=bad)
        report(restored_parts=restored_parts, write_seconds=jobs.write_seconds)
        if bad:
            # The cause names damaged files of the input, which the end of the attempt looks for.
            raise failure_of(self._name, bad, jobs.parted.share) from jobs.first_error
        jobs.progress.finished()

    @property
    def _name(self) -> str:
        return describe(self._step)


def _as_listed(known: PartedStep, enumerator: ItemEnumerator) -> PartedStep:
    """Return the progress for the listing of this try, which lacks what its source leaves out by its rules."""
    listed = state_after({**enumerator.snapshot(), "progress": _NO_PROGRESS}, ())
    if listed["listing"] == known.listed["listing"]:
        return replace(known, listed=listed)
    finished = {number: moved_pieces(pieces, known.listed, listed) for number, pieces in known.finished.items()}
    return replace(known, listed=listed, finished=finished)


_NO_PROGRESS: Mapping[str, Any] = {"finished": [], "partial": []}
