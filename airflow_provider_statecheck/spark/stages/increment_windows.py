"""The increments of a source in turn, and those that one Spark job computes together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.stages.increment_jobs import IncrementTasks
from airflow_provider_statecheck.spark.stages.split_plans import SplitPlan
from airflow_provider_statecheck.spark.tables.alignment import is_alike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_statecheck.spark.connectors.enumerator import ItemEnumerator
    from airflow_provider_statecheck.spark.connectors.source import Increment, SplitEnumerator
    from airflow_provider_statecheck.spark.stages.executor.split_input import FileRows

    LoadedIncrement = tuple[Increment, DataFrame]
    """An increment and its rows."""

MOST_IN_ONE_JOB = 128
"""Number of increments of one Spark job, whose plan may have a scan of each."""


@dataclass(frozen=True, slots=True)
class Window:
    """Increments of one job, and what follows them."""

    increments: Sequence[Increment]
    job: Callable[[str], DataFrame]
    """Returns the job, given the directory of the records of its tasks."""
    following: LoadedIncrement | None = None
    error: Exception | None = None
    """Why the increment after them could not be loaded; those before it are computed first."""

    @property
    def is_end(self) -> bool:
        """Whether the input ends with them."""
        return self.following is None and self.error is None

    def next(self) -> LoadedIncrement | None:
        """Return the increment after them; ``None`` at the end of the input."""
        if self.error is not None:
            raise self.error
        return self.following


class IncrementQueue:
    """Gives the increments of a source in turn, or those of one job together."""

    def __init__(self, enumerator: SplitEnumerator) -> None:
        self._enumerator = enumerator
        self._waiting: deque[Increment] = deque()
        """Increments that were planned ahead."""
        self._tasks_read_files = hasattr(enumerator, "file_parts")

    def next(self) -> Increment | None:
        """Return the next increment; ``None`` at the end of the input."""
        return self._waiting.popleft() if self._waiting else self._enumerator.next_increment()

    def loaded(self, increment: Increment | None) -> LoadedIncrement | None:
        """Return an increment with its rows."""
        return None if increment is None else (increment, self._enumerator.load(increment))

    def window(self, tasks: IncrementTasks, first: LoadedIncrement, following: Increment) -> Window:
        """
        Return increments for one job: all whose files its tasks can read, or else those with the same columns.

        :param tasks: Tasks that need no earlier state.
        """
        plan = SplitPlan(tasks)
        self._waiting.appendleft(following)
        if self._tasks_read_files:
            window = self._window_of_files(plan, first)
            if window is not None:
                return window
            self._tasks_read_files = False
        return self._window_of_frames(plan, first)

    def _window_of_files(self, plan: SplitPlan, first: LoadedIncrement) -> Window | None:
        planned = [first[0]]
        while len(planned) < MOST_IN_ONE_JOB and (following := self.next()) is not None:
            planned.append(following)
        spark = first[1].sparkSession
        rows = self._files_of(plan, planned, spark)
        if rows is None:
            self._waiting.extendleft(reversed(planned[1:]))
            return None
        job = partial(plan.of_files, spark, rows, len(planned))
        try:
            return Window(planned, job, self.loaded(self.next()))
        except Exception as error:
            return Window(planned, job, error=error)

    def _files_of(self, plan: SplitPlan, planned: Sequence[Increment], spark: SparkSession) -> FileRows | None:
        enumerator, columns, parts = cast("ItemEnumerator", self._enumerator), plan.file_columns, []
        if columns is None:
            return None
        for increment in planned:
            try:
                found = enumerator.file_parts(increment, columns)
            except Exception:
                # Of any class, as loading. That raises it again, after the increments before it.
                return None
            if found is None or not is_alike(found.schema, columns):
                return None
            parts.append(found)
        return plan.rows_of_files(parts, cores_of(spark))

    def _window_of_frames(self, plan: SplitPlan, first: LoadedIncrement) -> Window:
        loaded = [first]
        while (following := self.next()) is not None:
            try:
                further = following, self._enumerator.load(following)
            except Exception as error:
                return _of_frames(plan, loaded, error=error)
            if len(loaded) == MOST_IN_ONE_JOB or not plan.tasks.fits(further[1]):
                return _of_frames(plan, loaded, following=further)
            loaded.append(further)
        return _of_frames(plan, loaded)


def _of_frames(plan: SplitPlan, loaded: Sequence[LoadedIncrement], **what_follows: Any) -> Window:
    job = partial(plan.of_frames, [frame for _, frame in loaded])
    return Window([increment for increment, _ in loaded], job, **what_follows)
