"""
Choice of the members of a savepoint of a whole job.

A member is a completed checkpoint of one stage whose sink commits are confirmed: of a stage that runs when the
savepoint is triggered its first one afterwards, of any other stage its last one. A savepoint with which the job
terminates takes the last one of each stage, after the stage has ended. The members are consistent if no stage has
listed output of another one that the other's member does not contain. A stage whose member is behind its readers gives
a later one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self

from airflow_provider_statecheck.checkpoint import start_decision
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import (
    ROLLED_BACK,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.statistics import OperatorStatistics
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, CheckpointNotFoundError

MOST_ROUNDS = 3
"""Number of times that stages which read each other may replace their members by later ones."""
_AT_TRIGGER = re.compile(r"(.*)/(\d{1,18})/(\d{1,18})/(running|ended)", re.DOTALL)

Positions = Mapping[OperatorId, Sequence[int]]
"""Checkpoints of other stages of the job whose output a member has listed, by stage."""


class Dependencies(Protocol):
    """Reads what checkpoints depend on."""

    def positions_of(self, checkpoint: CheckpointRecord) -> Positions:
        """Return the positions that a checkpoint of a stage has listed, from its metadata."""

    def copied_checkpoint(self, adopted: CheckpointRecord) -> int:
        """
        Return the checkpoint of the same operator that a restored savepoint copies.

        0 for one of another operator.
        """

    def row(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return the row of a checkpoint that the view of its job does not contain; ``None`` if it is removed."""


class GivingStatus(StrEnum):
    """What a stage can give to a savepoint of its job."""

    GIVING = "giving"
    """The stage gives a member, whether or not it runs."""
    EMPTY = "empty"
    """The stage has ended without a checkpoint, before or after the trigger."""
    RELEASED = "released"
    """Retention has released the checkpoints of the stage, or it has only the savepoint that it started from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAtTrigger:
    """A stage of a savepoint of its job, as it was at the trigger; it takes its next checkpoint without being asked."""

    operator_id: OperatorId
    uid: str
    generation: int
    epoch: int
    is_running: bool
    """Whether an attempt was running, whose next checkpoint is then the member."""
    status: GivingStatus = GivingStatus.GIVING

    @classmethod
    def of(cls, view: JobView, operator: OperatorRecord) -> Self:
        """Return an operator of a job as a stage of a savepoint that is triggered now."""
        is_running = view.has_open_attempt(operator)
        return cls(
            operator_id=operator.operator_id,
            uid=operator.uid,
            generation=operator.generation,
            epoch=operator.epoch,
            is_running=is_running,
            status=GivingStatus.GIVING if is_running else _status(view, operator),
        )

    @classmethod
    def named(cls, attempt_id: str, operator_id: OperatorId) -> Self | None:
        """Return the stage with an :attr:`attempt_id`; ``None`` if it is that of another task."""
        match = _AT_TRIGGER.fullmatch(attempt_id)
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
        """What the row of the awaited acknowledgement says about the stage."""
        return f"{self.uid}/{self.generation}/{self.epoch}/{'running' if self.is_running else 'ended'}"


def stages_at_trigger(view: JobView) -> list[StageAtTrigger]:
    """Return the stages of a job that have an attempt or a completed checkpoint."""
    return [StageAtTrigger.of(view, o) for o in view.stages if _has_begun(view, o)]


def require_members(view: JobView) -> None:
    """
    Require the stages of a job to have members for a savepoint.

    :raises CheckpointNotFoundError: if no stage has state, retention has released the state of one, or one has ended
        that has only the savepoint that it started from.
    :raises CheckpointDeclinedError: if a stage has not yet restored what a restore in place has requested.
    """
    start_decision.require_none_waiting(view, view.operators)
    require_checkpoints(view, stages_at_trigger(view))


def require_checkpoints(view: JobView, stages: Sequence[StageAtTrigger]) -> None:
    """
    Require that the stages of a savepoint can give their members.

    :raises CheckpointNotFoundError: as :func:`require_members`.
    """
    begun = next((m for m in stages if m.status is GivingStatus.RELEASED and _has_only_its_savepoint(view, m)), None)
    if begun is not None:
        raise CheckpointNotFoundError(
            f"Expected a checkpoint of stage {begun.uid!r} for a savepoint of job {view.job.name!r}, found only the "
            "savepoint that the stage started from; run the stage until it completes a checkpoint.",
            uid=begun.uid,
        )
    released = next((stage for stage in stages if stage.status is GivingStatus.RELEASED), None)
    if released is not None:
        raise CheckpointNotFoundError(
            f"Expected a retained checkpoint of stage {released.uid!r} for a savepoint of job {view.job.name!r}, found "
            "that retention has released its last one; run the stage again first, or retain the checkpoints of ended "
            "runs with externalized_checkpoint_retention.",
            uid=released.uid,
        )
    if all(stage.status is not GivingStatus.GIVING for stage in stages):
        raise CheckpointNotFoundError(
            f"Expected a stage of job {view.job.name!r} that runs or has a completed checkpoint, found none; run a "
            "stage first."
        )


class MemberChoice:
    """
    Chooses the members of a savepoint from the rows of a job.

    :param savepoint: Row of the savepoint, with the time of its trigger.
    :param contents: Reads what checkpoints depend on.
    """

    def __init__(self, view: JobView, savepoint: CheckpointRecord, contents: Dependencies) -> None:
        self._view = view
        self._savepoint = savepoint
        self._contents = contents
        self._operators = {operator.operator_id: operator for operator in view.operators}

    def members(self, stages: Iterable[StageAtTrigger]) -> dict[StageAtTrigger, CheckpointRecord | None]:
        """
        Return a consistent member of each stage; ``None`` for those that are still awaited, or have ended without one.

        :return: The members by stage. The status of those that have ended without a checkpoint is ``EMPTY``.
        :raises CheckpointDeclinedError: if a stage cannot give a member any more, no stage can, or the members cannot
            be made consistent.
        """
        chosen = dict(map(self._choice, stages))
        if all(stage.status is GivingStatus.EMPTY for stage in chosen):
            raise _declined("all of its stages have ended without a checkpoint")
        # A chain of stages settles in as many rounds as it is long.
        for _ in range(len(chosen) + MOST_ROUNDS):
            behind = self._behind(chosen)
            if not behind:
                return chosen
            chosen |= {stage: self._member(stage, at_least=position) for stage, (_, position) in behind.items()}
        raise _unsettled(self._behind(chosen))

    def _choice(self, stage: StageAtTrigger) -> tuple[StageAtTrigger, CheckpointRecord | None]:
        member = self._member(stage)
        operator = self._operators[stage.operator_id]
        if member is not None or self._view.has_open_attempt(operator):
            return stage, member
        status = _status(self._view, operator)
        if status is GivingStatus.RELEASED:
            raise _declined(f"stage {stage.uid!r} has ended, and no checkpoint of its own is retained")
        return replace(stage, status=status), None

    def _member(self, stage: StageAtTrigger, at_least: int = 0) -> CheckpointRecord | None:
        operator = self._operators.get(stage.operator_id)
        if operator is None or self._has_started_over(stage, operator):
            raise _declined(f"stage {stage.uid!r} has started over since the savepoint was triggered")
        stage = replace(stage, generation=operator.generation)
        usable = [c for c in self._usable(stage) if c.checkpoint_id >= at_least]
        pinned = next((c for c in usable if c.checkpoint_id == operator.pinned_checkpoint), None)
        self._require_retained(stage, operator, pinned, at_least)
        return pinned or self._first(stage, operator, usable)

    def _has_started_over(self, stage: StageAtTrigger, operator: OperatorRecord) -> bool:
        # The retry of an attempt without a checkpoint begins a new generation, and nothing is lost.
        generations = range(stage.generation, operator.generation)
        completed = [c for c in self._own(stage) if c.completed_at is not None]
        later = [
            a for a in self._view.attempts_of(stage.operator_id) if a.epoch > stage.epoch and a.restored_from is None
        ]
        # An attempt whose source has changed starts over in the generation of the checkpoints that it does not use.
        unused = (c for a in later for c in completed if c.generation == a.generation and c.epoch < a.epoch)
        return any(c.generation in generations for c in completed) or any(unused)

    def _require_retained(
        self, stage: StageAtTrigger, operator: OperatorRecord, pinned: CheckpointRecord | None, at_least: int
    ) -> None:
        lost = self._rolled_back(stage)
        if operator.pinned_checkpoint is not None and pinned is None and operator.pinned_checkpoint >= at_least:
            lost = operator.pinned_checkpoint
        if lost is not None:
            raise _declined(f"checkpoint {lost} of stage {stage.uid!r} was rolled back while the savepoint was taken")

    def _rolled_back(self, stage: StageAtTrigger) -> int | None:
        """
        Return a checkpoint from before the trigger that a restart or a rewind has rolled back since, if there is one.
        """
        rows = [c for c in self._own(stage) if c.generation == stage.generation]
        newest = max((c.checkpoint_id for c in rows if c.is_restorable), default=0)
        restored = [a.restored_from for a in self._view.attempts_of(stage.operator_id) if a.epoch > stage.epoch]
        lowest = min([newest, *(each for each in restored if each is not None)])
        before = (c for c in rows if lowest < c.checkpoint_id < self._savepoint.checkpoint_id)
        subsumed = (c for c in before if c.status is CheckpointStatus.SUBSUMED)
        lost = [c.checkpoint_id for c in subsumed if c.unusable_reason in (None, ROLLED_BACK)]
        return lost[-1] if lost else None

    def _first(
        self, stage: StageAtTrigger, operator: OperatorRecord, usable: Sequence[CheckpointRecord]
    ) -> CheckpointRecord | None:
        after = [c for c in usable if c.is_after(self._savepoint)]
        before = [c for c in usable if c not in after]
        if not stage.is_running:
            return next(reversed(before), None) or next(iter(after), None)
        if after and not self._savepoint.properties.is_terminate:
            return after[0]
        is_awaited = self._view.has_open_attempt(operator) or any(c.awaits_commit for c in self._own(stage))
        return None if is_awaited else next(reversed(usable), None)

    def _own(self, stage: StageAtTrigger) -> list[CheckpointRecord]:
        return [c for c in self._view.of_operator(stage.operator_id) if not c.is_of_user]

    def _usable(self, stage: StageAtTrigger) -> list[CheckpointRecord]:
        rows = [c for c in self._own(stage) if c.is_usable and not c.has_open_commit]
        return [c for c in rows if c.generation == stage.generation]

    def _behind(
        self, chosen: Mapping[StageAtTrigger, CheckpointRecord | None]
    ) -> dict[StageAtTrigger, tuple[StageAtTrigger, int]]:
        """Return the stages whose members lack output that another one has listed, with the reader and the position."""
        stages = {stage.operator_id: stage for stage in chosen}
        behind: dict[StageAtTrigger, tuple[StageAtTrigger, int]] = {}
        for reader, member in chosen.items():
            for operator_id, positions in self._positions_of(member).items():
                writer = self._require_stage(stages, reader, operator_id)
                written, newest = chosen[writer], max(positions)
                if writer.status is GivingStatus.EMPTY:
                    raise _listed_without_checkpoint(reader, writer.uid)
                if written is None:
                    continue
                self._require_in_force(reader, writer, written, positions)
                if newest > max(written.checkpoint_id, behind.get(writer, (reader, 0))[1]):
                    behind[writer] = (reader, newest)
        return behind

    def _positions_of(self, member: CheckpointRecord | None) -> Positions:
        found = {} if member is None else self._contents.positions_of(member)
        return {operator_id: positions for operator_id, positions in found.items() if operator_id in self._operators}

    def _require_stage(
        self, stages: Mapping[OperatorId, StageAtTrigger], reader: StageAtTrigger, operator_id: OperatorId
    ) -> StageAtTrigger:
        if operator_id not in stages:
            raise _listed_without_checkpoint(reader, self._operators[operator_id].uid)
        return stages[operator_id]

    def _require_in_force(
        self, reader: StageAtTrigger, writer: StageAtTrigger, written: CheckpointRecord, positions: Sequence[int]
    ) -> None:
        cuts = [
            (attempt.epoch, self._restored_by(attempt))
            for attempt in self._view.attempts_of(writer.operator_id)
            if attempt.epoch <= written.epoch
        ]
        for position in positions:
            taken_by = self._epoch_of(position)
            if taken_by is not None and any(epoch > taken_by and restored < position for epoch, restored in cuts):
                raise _declined(
                    f"stage {reader.uid!r} has listed the output of checkpoint {position} of stage {writer.uid!r}, "
                    f"which has retracted it; run {reader.uid!r} again first"
                )

    def _restored_by(self, attempt: AttemptRecord) -> int:
        """Return the checkpoint of its own operator that an attempt has restored; 0 for a fresh start."""
        restored = self._view.checkpoint(attempt.restored_from)
        if restored is not None and restored.properties.unclaimed:
            return self._contents.copied_checkpoint(restored)
        return attempt.restored_from or 0

    def _epoch_of(self, checkpoint_id: int) -> int | None:
        row = self._view.checkpoint(checkpoint_id) or self._contents.row(checkpoint_id)
        # A row is removed long after its checkpoint; its readers have checked the position in each attempt since.
        return None if row is None else row.epoch


def _has_begun(view: JobView, operator: OperatorRecord) -> bool:
    return bool(view.attempts_of(operator.operator_id)) or any(
        c.is_restorable for c in view.of_operator(operator.operator_id)
    )


def _status(view: JobView, operator: OperatorRecord) -> GivingStatus:
    own = [c for c in view.of_operator(operator.operator_id) if c.completed_at is not None and not c.is_of_user]
    current = [c for c in own if c.generation == operator.generation]
    if any(c.is_restorable for c in current):
        return GivingStatus.GIVING
    if not current and _has_only_its_savepoint(view, operator):
        return GivingStatus.RELEASED
    is_begun = any(a.generation == operator.generation for a in view.attempts_of(operator.operator_id))
    # A rewind to before the first checkpoint leaves the checkpoints of the generation before until a newer one
    # completes.
    is_rewound = any(c.is_restorable for c in own)
    has_had_state = bool(current) or (not is_begun and not is_rewound and bool(own or _has_counted(view, operator)))
    return GivingStatus.RELEASED if has_had_state else GivingStatus.EMPTY


def _has_only_its_savepoint(view: JobView, stage: OperatorRecord | StageAtTrigger) -> bool:
    """Return whether the newest attempt of a stage without a checkpoint started from a savepoint, not without state."""
    newest = max(view.attempts_of(stage.operator_id), key=lambda a: a.epoch, default=None)
    return newest is not None and newest.generation == stage.generation and newest.restored_from is not None


def _has_counted(view: JobView, operator: OperatorRecord) -> bool:
    # Maintenance removes old rows, but not the statistics.
    return OperatorStatistics.in_view(view, operator.operator_id).has_had_state


def _declined(why: str) -> CheckpointDeclinedError:
    return CheckpointDeclinedError(f"The savepoint of the job was declined: {why}.")


def _listed_without_checkpoint(reader: StageAtTrigger, uid: str) -> CheckpointDeclinedError:
    return _declined(
        f"stage {reader.uid!r} has listed the output of stage {uid!r}, which had no checkpoint when the savepoint was "
        f"triggered; take the savepoint again when {uid!r} has completed one"
    )


def _unsettled(behind: Mapping[StageAtTrigger, tuple[StageAtTrigger, int]]) -> CheckpointDeclinedError:
    writer, (reader, position) = min(behind.items(), key=lambda each: each[0].uid)
    return _declined(
        f"stages {writer.uid!r} and {reader.uid!r} read each other: {reader.uid!r} has listed the output of checkpoint "
        f"{position} of {writer.uid!r}, and no members were consistent"
    )
