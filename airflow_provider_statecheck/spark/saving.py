"""What a stage has to save at any moment, and the saving of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.auto_facts import AutoFacts
from airflow_provider_statecheck.spark.costs.pace import Pace
from airflow_provider_statecheck.spark.costs.stage_costs import StageCosts
from airflow_provider_statecheck.spark.costs.write_times import WriteTimes
from airflow_provider_statecheck.spark.loops.iterations import Iterations
from airflow_provider_statecheck.spark.loops.progress import LoopProgress
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.scope import Scope, StepKey
from airflow_provider_statecheck.spark.snapshots.live import StageSnapshots
from airflow_provider_statecheck.spark.state import StageState


class StageSaving:
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
