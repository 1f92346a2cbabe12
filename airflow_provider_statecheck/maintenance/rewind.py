"""
Rewinding the state of a job to a point before a run.

It is what a run that begins again does for itself, for several runs at once and before any of them begins: in one
transaction what they took is given up, and the state stands at an earlier run. Its bytes go when there is something newer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint import run_order, transitions
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID, TaskLiveness
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    NoRestorableCheckpointError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindJob:
    """Ask that a job stands where it stood before a run."""

    job_id: JobId
    run_key: str
    """The run's logical date, or its run id where it has none; it need not have taken a checkpoint."""
    uid: str | None = None
    """The only operator that is meant; all of the job by default."""
    dry_run: bool = False
    """Whether to say only what would be done."""

    def __post_init__(self) -> None:
        require("the run", self.run_key, bool, "a logical date or a run id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewoundOperator:
    """What became of one operator."""

    uid: str
    taken_back: tuple[CheckpointRecord, ...]
    """What is not restored any more, newest first."""
    stands_at: CheckpointRecord | None
    """What the next run restores; ``None`` where it begins with nothing."""
    fenced: AttemptRecord | None = None
    """An attempt that never said that it ended, and whose task is not known to run."""


class JobRewinding:
    """
    Rewinds jobs that no task works on.

    :param store: The rows.
    :param liveness: Who knows whether a task still runs.
    """

    def __init__(self, store: JobStore, liveness: TaskLiveness) -> None:
        self._store = store
        self._liveness = liveness

    def rewind(self, request: RewindJob) -> tuple[RewoundOperator, ...]:
        """
        Let the operators of a job stand where they stood before a run, all of them or none; it may be repeated.

        :raises CheckpointNotFoundError: if there is no such job, or no state in it that goes from run to run.
        :raises ConcurrentAttemptError: if a task works on one of them.
        :raises NoRestorableCheckpointError: if there was state before the run and it is not retained.
        """
        # Asked before the transaction: nothing foreign may run while a row is locked.
        dead = [a for a in _open_attempts(self._store, request) if not self._liveness.is_running(a.owner)]
        with self._store.transaction(request.job_id) as tx:
            plans = [(each, _outcome(tx, each, request.run_key, dead)) for each in _meant(tx.view(), request)]
            if not request.dry_run:
                for operator, outcome in plans:
                    _carry_out(tx, operator, outcome)
        return tuple(outcome for _, outcome in plans)


def _open_attempts(store: JobStore, request: RewindJob) -> list[AttemptRecord]:
    view = store.describe(request.job_id)
    newest = (view.current_attempt(operator) for operator in _meant(view, request))
    return [a for a in newest if a is not None and a.status is AttemptStatus.RUNNING]


def _meant(view: JobView, request: RewindJob) -> list[OperatorRecord]:
    # Aligned checkpoints are of no run.
    own = (o for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID)
    found = [o for o in own if request.uid in (None, o.uid)]
    if not found:
        raise CheckpointNotFoundError(
            f"Expected an operator of job {view.job.name!r} whose state goes from run to run, found none; aligned checkpoints "
            f"of several operators are of no run."
        )
    return found


def _require_nobody_works(
    tx: JobTransaction, operator: OperatorRecord, dead: Sequence[AttemptRecord]
) -> AttemptRecord | None:
    newest = tx.attempt(operator.operator_id, operator.epoch)
    is_open = newest is not None and newest.status is AttemptStatus.RUNNING
    if newest is not None and is_open and newest not in dead:
        raise ConcurrentAttemptError(
            f"Expected no task to work on operator {operator.uid!r} of job {tx.job.name!r}, found {newest.owner.label}; nothing "
            f"was changed. Wait for its end, or stop it."
        )
    return newest if is_open else None


def _outcome(tx: JobTransaction, operator: OperatorRecord, run: str, dead: Sequence[AttemptRecord]) -> RewoundOperator:
    fenced = _require_nobody_works(tx, operator, dead)
    line = transitions.restorable(tx, operator)
    left = run_order.stood_before(line, run)
    if line and not left and not _begins_with(operator, run):
        raise NoRestorableCheckpointError(
            f"Expected a retained checkpoint of operator {operator.uid!r} in job {tx.job.name!r} from before run {run!r}, found "
            f"those of {_runs(line)}; nothing was changed. Keep those of more runs with retained_runs, or let runs work on a "
            f"copy, with from_checkpoint=."
        )
    if left and all(c.unusable_reason is not None for c in left):
        raise NoRestorableCheckpointError(
            f"Expected a readable checkpoint of operator {operator.uid!r} in job {tx.job.name!r} from before run {run!r}, found "
            f"that {left[0].checkpoint_id} could not be read: {left[0].unusable_reason}; nothing was changed. Bring it back.",
            checkpoint_ids=tuple(c.checkpoint_id for c in left),
        )
    return RewoundOperator(
        uid=operator.uid,
        taken_back=line[: len(line) - len(left)],
        stands_at=left[0] if left else None,
        fenced=fenced,
    )


def _begins_with(operator: OperatorRecord, run: str) -> bool:
    return run_order.is_same(run, operator.first_run) or run_order.is_earlier(run, operator.first_run)


def _runs(line: Sequence[CheckpointRecord]) -> str:
    return ", ".join(dict.fromkeys(repr(c.run_key) for c in line))


def _carry_out(tx: JobTransaction, operator: OperatorRecord, outcome: RewoundOperator) -> None:
    if outcome.fenced is not None:
        transitions.close_abandoned(tx, outcome.fenced)
    if outcome.stands_at is not None:
        transitions.roll_back(tx, outcome.taken_back)
    elif outcome.taken_back:
        # As with any fresh start, what is of an earlier generation goes when there is something newer.
        tx.save_operator(replace(operator, generation=operator.generation + 1))
    log.info("Job %s operator %s stands before a run; taken back: %s", tx.job.name, operator.uid, _ids(outcome))


def _ids(outcome: RewoundOperator) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in outcome.taken_back]
