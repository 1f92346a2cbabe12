"""
Choice of the parts of a savepoint of a whole job.

A part is a completed checkpoint of one stage whose sink commits are confirmed: of a stage that runs when the savepoint is
triggered its first one afterwards, of any other stage its last one. The parts are consistent if no stage has listed output of
another one that the other's part does not contain. A stage whose part is behind its readers gives a later one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, OperatorId
from airflow_provider_statecheck.checkpoint.options import CheckpointOptions
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, CheckpointNotFoundError

MOST_ROUNDS = 3
"""Number of times that parts may be replaced by later ones; stages that read each other could go on forever."""
_MEMBER = re.compile(r"(.*)/(\d{1,18})/(\d{1,18})/(running|ended)", re.DOTALL)

Positions = Mapping[OperatorId, Sequence[int]]
"""Checkpoints of other stages of the job whose output a part has listed, by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """
    A stage in a savepoint of its job, as it was at the trigger.

    To the coordinator it is a task that is not triggered: the stage takes its next checkpoint without being asked.
    """

    operator_id: OperatorId
    uid: str
    generation: int
    epoch: int
    is_running: bool
    """Whether an attempt was running, whose next checkpoint is then the part."""
    status: ExecutionStatus = ExecutionStatus.RUNNING
    """
    ``RUNNING`` for a stage that gives a part, whether or not it runs.

    ``FINISHED`` for a stage that has ended without a checkpoint; ``FAILED`` if retention has released its checkpoints.
    """
    name: str = ""
    parallelism: int = 1
    max_parallelism: int = 1

    @classmethod
    def of(cls, view: JobView, operator: OperatorRecord) -> Self:
        """Return an operator of a job as a member of a savepoint that is triggered now."""
        is_running = view.has_open_attempt(operator)
        return cls(
            operator_id=operator.operator_id,
            uid=operator.uid,
            generation=operator.generation,
            epoch=operator.epoch,
            is_running=is_running,
            status=ExecutionStatus.RUNNING if is_running else _status(view, operator),
        )

    @classmethod
    def named(cls, attempt_id: str, operator_id: OperatorId) -> Self | None:
        """Return the member with an :attr:`attempt_id`; ``None`` if it is that of another task."""
        match = _MEMBER.fullmatch(attempt_id)
        if match is None:
            return None
        uid, generation, epoch, was = match.groups()
        return cls(
            operator_id=operator_id,
            uid=uid,
            generation=int(generation),
            epoch=int(epoch),
            is_running=was == "running",
        )

    @property
    def attempt_id(self) -> str:
        """Return what the row of the awaited acknowledgement says about the member."""
        return f"{self.uid}/{self.generation}/{self.epoch}/{'running' if self.is_running else 'ended'}"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: CheckpointOptions) -> None:
        """Do nothing: the stage takes its next checkpoint anyway."""

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        """Do nothing: a savepoint has no commits to make."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        """Do nothing: the stage does not depend on the savepoint."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Do nothing: the stage does not depend on the savepoint."""


def members_of(view: JobView) -> list[Member]:
    """Return the stages of a job that have an attempt or a completed checkpoint."""
    return [Member.of(view, o) for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID and _has_begun(view, o)]


def require_members(view: JobView) -> None:
    """
    Require the stages of a job to have parts for a savepoint.

    :raises CheckpointNotFoundError: if no stage has state, or retention has released the state of one.
    """
    members = members_of(view)
    released = next((member for member in members if member.status is ExecutionStatus.FAILED), None)
    if released is not None:
        raise CheckpointNotFoundError(
            f"Expected a retained checkpoint of stage {released.uid!r} for a savepoint of job {view.job.name!r}, found that "
            f"retention has released its last one; run the stage again first, or retain the checkpoints of ended runs with "
            f"externalized_checkpoint_retention.",
            uid=released.uid,
        )
    if all(member.status is not ExecutionStatus.RUNNING for member in members):
        raise CheckpointNotFoundError(
            f"Expected a stage of job {view.job.name!r} that runs or has a completed checkpoint, found none; run a stage first."
        )


class PartChoice:
    """
    Chooses the parts of a savepoint from the rows of a job.

    :param view: Rows of the job.
    :param savepoint: Row of the savepoint, with the time of its trigger.
    :param positions_of: Reads the positions of a stage's checkpoint from its metadata.
    """

    def __init__(
        self, view: JobView, savepoint: CheckpointRecord, positions_of: Callable[[CheckpointRecord], Positions]
    ) -> None:
        self._view = view
        self._savepoint = savepoint
        self._positions_of = positions_of
        self._operators = {operator.operator_id: operator for operator in view.operators}

    def parts(self, members: Iterable[Member]) -> dict[Member, CheckpointRecord | None]:
        """
        Return a consistent part of each member; ``None`` for those that are still awaited.

        :raises CheckpointDeclinedError: if a member cannot give a part any more, or the parts cannot be made consistent.
        """
        chosen = {member: self._part(member) for member in members}
        for _ in range(MOST_ROUNDS):
            behind = self._behind(chosen)
            if not behind:
                return chosen
            chosen |= {member: self._part(member, at_least=position) for member, (_, position) in behind.items()}
        return self._require_settled(chosen)

    def _part(self, member: Member, at_least: int = 0) -> CheckpointRecord | None:
        operator = self._operators.get(member.operator_id)
        if operator is None or operator.generation != member.generation:
            raise _declined(f"stage {member.uid!r} has started over since the savepoint was triggered")
        usable = [c for c in self._usable(member) if c.checkpoint_id >= at_least]
        pinned = next((c for c in usable if c.checkpoint_id == operator.pinned_checkpoint), None)
        self._require_retained(member, operator, pinned, at_least)
        return pinned or self._first(member, operator, usable)

    def _require_retained(
        self, member: Member, operator: OperatorRecord, pinned: CheckpointRecord | None, at_least: int
    ) -> None:
        if operator.pinned_checkpoint is not None and pinned is None and operator.pinned_checkpoint >= at_least:
            raise _declined(
                f"checkpoint {operator.pinned_checkpoint} of stage {member.uid!r} was rolled back while the savepoint was taken"
            )

    def _first(
        self, member: Member, operator: OperatorRecord, usable: Sequence[CheckpointRecord]
    ) -> CheckpointRecord | None:
        after = [c for c in usable if self._is_after_trigger(c)]
        before = [c for c in usable if c not in after]
        if not member.is_running:
            return next(reversed(before), None) or next(iter(after), None)
        if after:
            return after[0]
        is_awaited = self._view.has_open_attempt(operator) or self._has_open_commit(member)
        return None if is_awaited else next(reversed(before), None)

    def _is_after_trigger(self, checkpoint: CheckpointRecord) -> bool:
        # Ids order a checkpoint that was triggered and completed within the resolution of the clock.
        triggered = (self._savepoint.triggered_at, self._savepoint.checkpoint_id)
        return (checkpoint.completed_at or checkpoint.triggered_at, checkpoint.checkpoint_id) > triggered

    def _usable(self, member: Member) -> list[CheckpointRecord]:
        rows = [c for c in self._view.of_operator(member.operator_id) if c.is_restorable and not c.has_open_commit]
        return [c for c in rows if c.generation == member.generation and c.unusable_reason is None]

    def _has_open_commit(self, member: Member) -> bool:
        return any(c.awaits_commit for c in self._view.of_operator(member.operator_id))

    def _behind(self, chosen: Mapping[Member, CheckpointRecord | None]) -> dict[Member, tuple[Member, int]]:
        """Return the members whose parts lack output that another part has listed, with the reader and the position."""
        members = {member.operator_id: member for member in chosen}
        behind: dict[Member, tuple[Member, int]] = {}
        for reader, part in chosen.items():
            for operator_id, positions in ({} if part is None else self._positions_of(part)).items():
                writer = members.get(operator_id)
                if writer is not None:
                    self._require_in_force(reader, writer, positions)
                    written = chosen[writer]
                    newest = max((*positions, behind.get(writer, (reader, 0))[1]), default=0)
                    if written is not None and newest > written.checkpoint_id:
                        behind[writer] = (reader, newest)
        return behind

    def _require_in_force(self, reader: Member, writer: Member, positions: Sequence[int]) -> None:
        rows = {c.checkpoint_id: c for c in self._view.of_operator(writer.operator_id)}
        attempts = [a for a in self._view.attempts if a.operator_id == writer.operator_id]
        for position in positions:
            row = rows.get(position)
            if row is not None and (row.generation != writer.generation or _is_retracted(row, attempts)):
                raise _declined(
                    f"stage {reader.uid!r} has listed the output of checkpoint {position} of stage {writer.uid!r}, which has "
                    f"retracted it; run {reader.uid!r} again first"
                )

    def _require_settled(self, chosen: dict[Member, CheckpointRecord | None]) -> dict[Member, CheckpointRecord | None]:
        behind = self._behind(chosen)
        for writer, (reader, position) in behind.items():
            raise _declined(
                f"stages {writer.uid!r} and {reader.uid!r} read each other: {reader.uid!r} has listed the output of checkpoint "
                f"{position} of {writer.uid!r}, and after {MOST_ROUNDS} rounds no parts were consistent"
            )
        return chosen


def _has_begun(view: JobView, operator: OperatorRecord) -> bool:
    has_attempt = any(a.operator_id == operator.operator_id for a in view.attempts)
    return has_attempt or any(c.is_restorable for c in view.of_operator(operator.operator_id))


def _status(view: JobView, operator: OperatorRecord) -> ExecutionStatus:
    rows = [c for c in view.of_operator(operator.operator_id) if c.generation == operator.generation]
    if any(c.is_restorable for c in rows):
        return ExecutionStatus.RUNNING
    has_had_state = any(c.completed_at is not None and not c.properties.is_savepoint for c in rows)
    return ExecutionStatus.FAILED if has_had_state else ExecutionStatus.FINISHED


def _is_retracted(row: CheckpointRecord, attempts: Iterable[AttemptRecord]) -> bool:
    # An attempt that restores an earlier checkpoint retracts the output of those that older attempts took after it.
    return any(
        a.epoch > row.epoch and a.restored_from is not None and a.restored_from < row.checkpoint_id
        for a in attempts
        if a.generation == row.generation
    )


def _declined(why: str) -> CheckpointDeclinedError:
    return CheckpointDeclinedError(f"The savepoint of the job was declined: {why}.")
