"""Figures and Dags of a job for the list of jobs, kept up to date in each transition of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import (
    Failure,
    JobFigures,
    counts_as_newest,
    dag_of,
    failure_of_attempt,
    failure_of_checkpoint,
    status_of,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.tables import ATTEMPTS, CHECKPOINTS, JOB_FIGURES
from airflow_provider_statecheck.metadata.unit_of_work import UnitOfWork


class FiguresOfTransition:
    """
    Figures of a job during a transition.

    The changes of a checkpoint or of a registration determine the new figures. After other changes, such as the end of an
    attempt or the rewind of a job, the figures that may have changed are read from the rows again.

    :param rows: Rows of the job in the transition.
    :param figures: Figures before the transition.
    """

    def __init__(self, rows: UnitOfWork, figures: JobFigures) -> None:
        self._rows = rows
        self._written = self._figures = figures
        self._running: set[tuple[OperatorId, int]] = set()
        self._has_other_status = False
        self._has_other_checkpoint = False
        self._has_other_failure = False

    def attempt_saved(self, known: AttemptRecord | None, record: AttemptRecord, *, is_first: bool) -> None:
        """
        Take note of a saved attempt.

        :param is_first: Whether it is the first attempt of its operator.
        """
        is_of_stage = record.operator_id != ALIGNED_OPERATOR_ID
        if record.status is AttemptStatus.RUNNING and is_of_stage:
            self._running.add((record.operator_id, record.epoch))
        else:
            self._running.discard((record.operator_id, record.epoch))
        if known is None or known.status is not record.status:
            self._has_other_status = True
            self._add_failure_of(record)
        if is_first and is_of_stage:
            # The failures of a coordinator of several operators count only in a job without stages.
            self._has_other_failure |= self._figures.failed_at is not None

    def operator_saved(self, known: OperatorRecord | None, record: OperatorRecord) -> None:
        """Take note of a saved operator."""
        if known is None or known.generation != record.generation:
            self._has_other_checkpoint |= self._figures.checkpoint_id is not None

    def checkpoint_saved(
        self,
        known: CheckpointRecord | None,
        record: CheckpointRecord,
        operator_of: Callable[[OperatorId], OperatorRecord | None],
    ) -> None:
        """
        Take note of a saved checkpoint.

        :param operator_of: Returns an operator of the job.
        """
        counts = counts_as_newest(record)
        if counts and (known is None or not counts_as_newest(known)):
            operator = operator_of(record.operator_id)
            if operator is not None and operator.generation == record.generation and self._is_newest(record):
                self._set_checkpoint(record.checkpoint_id, record.completed_at, record.full_size_bytes)
        elif record.checkpoint_id == self._figures.checkpoint_id and not counts:
            self._has_other_checkpoint = True
        if known is None or known.status is not record.status:
            self._add_failure(failure_of_checkpoint(record))

    def attempts_removed(self) -> None:
        """Take note that ended attempts were removed."""
        self._has_other_status = True
        self._has_other_failure |= self._figures.failed_at is not None

    def checkpoints_removed(self) -> None:
        """Take note that ended checkpoints were removed."""
        self._has_other_failure |= self._figures.failed_at is not None

    def times_changed(self) -> None:
        """Take note that times in the rows were corrected."""
        self._has_other_checkpoint = self._has_other_failure = True

    def job_removed(self) -> None:
        """Take note that all rows of the job were removed."""
        self._figures = JobFigures()
        self._has_other_status = self._has_other_checkpoint = self._has_other_failure = False

    def changes(self) -> dict[str, Any]:
        """Return the columns of the job's row to change, at the end of the transition."""
        if self._has_other_status:
            self._read_status()
        if self._has_other_checkpoint:
            self._read_newest_checkpoint()
        if self._has_other_failure:
            self._figures = replace(self._figures, failed_at=None, failure=None)
            for failure in self._read_failures():
                self._add_failure(failure)
        return JOB_FIGURES.changes(self._written, self._figures)

    def _is_newest(self, record: CheckpointRecord) -> bool:
        known = self._figures
        if record.completed_at is None or known.completed_at is None or known.checkpoint_id is None:
            return True
        return (record.completed_at, record.checkpoint_id) > (known.completed_at, known.checkpoint_id)

    def _read_newest_checkpoint(self) -> None:
        row = self._rows.execute(statements.NEWEST_CHECKPOINT_OF_JOB).one_or_none()
        self._set_checkpoint(*((None, None, None) if row is None else row))

    def _set_checkpoint(self, checkpoint_id: int | None, completed_at: datetime | None, size: int | None) -> None:
        self._figures = replace(
            self._figures, checkpoint_id=checkpoint_id, completed_at=completed_at, full_size_bytes=size
        )

    def _add_failure_of(self, attempt: AttemptRecord) -> None:
        failure = failure_of_attempt(attempt)
        if attempt.operator_id == ALIGNED_OPERATOR_ID:
            self._has_other_failure |= failure is not None
        else:
            self._add_failure(failure)

    def _add_failure(self, failure: Failure | None) -> None:
        known = self._figures
        if failure is not None and (known.failed_at is None or failure > (known.failed_at, known.failure or "")):
            self._figures = replace(known, failed_at=failure[0], failure=failure[1])

    def _read_status(self) -> None:
        if self._running:
            newest = [AttemptStatus.RUNNING]
        else:
            attempts = self._rows.read(ATTEMPTS, statements.NEWEST_ATTEMPTS)
            of_stages = [a for a in attempts if a.operator_id != ALIGNED_OPERATOR_ID]
            newest = [attempt.status for attempt in of_stages or attempts]
        has_attempts = newest or self._rows.execute(statements.HAS_ATTEMPTS).scalar()
        self._figures = replace(self._figures, status=status_of(newest) if has_attempts else None)

    def _read_failures(self) -> list[Failure | None]:
        return [
            *map(failure_of_attempt, self._rows.read(ATTEMPTS, statements.LAST_FAILED_ATTEMPTS)),
            *map(failure_of_checkpoint, self._rows.read(CHECKPOINTS, statements.LAST_FAILED_CHECKPOINTS)),
        ]


class DagsOfTransition:
    """
    Dags with attempts of the operators of a job, kept up to date during a transition.

    :param rows: Rows of the job in the transition.
    """

    def __init__(self, rows: UnitOfWork) -> None:
        self._rows = rows

    def attempt_saved(self, known: AttemptRecord | None, record: AttemptRecord) -> None:
        """
        Add the Dag of a saved attempt.

        :param known: Another state of the attempt, or an earlier attempt of the operator, whose Dag is known.
        """
        dag_id = dag_of(record.owner)
        if dag_id is None or (known is not None and dag_of(known.owner) == dag_id):
            return
        self._rows.execute(statements.ADD_DAG, operator_id=record.operator_id, dag_id=dag_id)

    def attempts_removed(self, operator_id: OperatorId) -> None:
        """Remove the Dags of an operator that have no attempt any more."""
        owners = self._rows.execute(statements.OWNERS_OF_OPERATOR, operator_id=operator_id).scalars()
        kept = {dag_id for owner in owners if (dag_id := dag_of(owner)) is not None}
        self._rows.execute(statements.remove_other_dags(operator_id, kept))
