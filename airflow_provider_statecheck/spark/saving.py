"""What a stage has to save at any moment, and the saving of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.costs.auto_facts import AutoFacts
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
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self,
        attempt: StageAttempt,
        restored: RestoredStage | None,
        *,
        overhead_budget: float | None,
        monotonic: Callable[[], float],
    ) -> None:
        saved = restored.state if restored else {}
        self._attempt = attempt
        self.state = StageState(saved.get("values"))
        self.progress = LoopProgress(saved.get("loops", ()))
        self.iterations = Iterations(saved.get("iterations", ()))
        self.auto_facts = AutoFacts(saved.get("auto", ()))
        self.write_times = WriteTimes(saved.get("writes", ()))
        self.costs = StageCosts(overhead_budget, monotonic, saved.get("costs"))
        self.snapshots = StageSnapshots(attempt.storage, attempt.grant.attempt, restored)
        self.unsaved_bytes = 0
        """Of snapshots that no checkpoint names yet."""
        self._saved = self._content() if restored else ((), _NOTHING)

    def checkpoint(self) -> CheckpointRecord | None:
        """Take a checkpoint; ``None`` if it failed and failures are tolerated."""
        content = self._content()
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
        return completed

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
        }


_NOTHING: dict[str, Any] = {"values": StageState().encode(), "loops": [], "iterations": []}
