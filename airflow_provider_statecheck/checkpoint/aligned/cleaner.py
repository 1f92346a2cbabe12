"""Background deletion of subsumed checkpoints: Flink's ``CheckpointsCleaner``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set as AbstractSet
from concurrent.futures import Executor
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import (
    CompletedCheckpoint,
    DiscardPlan,
    StateDiscarder,
)
from airflow_provider_statecheck.exceptions import CoordinatorError

Job = Callable[[], None]


class StagedWork:
    """
    Runs every job, whatever became of those before it, and holds no thread of the executor to wait for another.

    :param executor: Where the jobs run.
    :param stages: The jobs; none of a stage begins before all of the earlier ones have ended.
    :param ended: Is given what the jobs raised; called exactly once, after the last.
    :param is_parallel: Whether the jobs of one stage run at the same time.
    """

    def __init__(
        self,
        executor: Executor,
        stages: Sequence[Sequence[Job]],
        ended: Callable[[list[Exception]], None],
        *,
        is_parallel: bool = True,
    ) -> None:
        self._executor = executor
        stages = [[job for stage in stages for job in stage]] if not is_parallel else stages
        self._waiting = [stage for stage in stages if stage] or [[_staged_work_nothing]]
        self._is_parallel = is_parallel
        self._ended = ended
        self._lock = threading.Lock()
        self._running = 0
        self._errors: list[Exception] = []

    def start(self) -> None:
        """Begin with the first stage and return."""
        stage = self._waiting.pop(0)
        bundles = [[job] for job in stage] if self._is_parallel else [list(stage)]
        self._running = len(bundles)
        for bundle in bundles:
            self._submit(bundle)

    def _submit(self, jobs: Sequence[Job]) -> None:
        try:
            self._executor.submit(self._run, jobs)
        except RuntimeError as error:
            # The executor was shut down: nobody will run them.
            self._finish([error])

    def _run(self, jobs: Sequence[Job]) -> None:
        errors: list[Exception] = []
        for job in jobs:
            try:
                job()
            except Exception as error:
                errors.append(error)
        self._finish(errors)

    def _finish(self, errors: list[Exception]) -> None:
        with self._lock:
            self._errors += errors
            self._running -= 1
            is_stage_over = self._running == 0
        if not is_stage_over:
            return
        if self._waiting:
            self.start()
        else:
            self._ended(self._errors)


def _staged_work_nothing() -> None:
    """Stand for a piece of work that has nothing to do."""


log = logging.getLogger(__name__)


def _nothing() -> None:
    """Do nothing."""


def _tell_nobody(_: CompletedCheckpoint) -> None:
    """Do nothing with a checkpoint."""


class CheckpointsCleaner:
    """
    Discards checkpoints.

    Deleting is idempotent and best effort: one failed delete does not stop the others, and what is left of a subsumed
    checkpoint goes with a later cleaning. Nothing of a caller runs while a lock is held.

    :param discarder: Who deletes.
    :param executor: Where that happens.
    :param is_parallel: Whether the files of one checkpoint are deleted at the same time.
    :param discarded: Is told of each completed checkpoint of which nothing is left.
    """

    def __init__(
        self,
        discarder: StateDiscarder,
        executor: Executor,
        *,
        is_parallel: bool = True,
        discarded: Callable[[CompletedCheckpoint], None] = _tell_nobody,
    ) -> None:
        self._discarder = discarder
        self._executor = executor
        self._is_parallel = is_parallel
        self._discarded = discarded
        self._changed = threading.Condition()
        self._subsumed: dict[int, CompletedCheckpoint] = {}
        self._cleanings = 0
        self._unfinished = 0
        self._is_closed = False

    @property
    def cleanings(self) -> int:
        """Return how many cleanings are in progress; a coordinator takes no new checkpoint while there are too many."""
        return self._cleanings

    @property
    def subsumed(self) -> tuple[CompletedCheckpoint, ...]:
        """Return the subsumed checkpoints that are still to be cleaned, oldest first."""
        with self._changed:
            return tuple(self._subsumed[i] for i in sorted(self._subsumed))

    def add_subsumed(self, checkpoint: CompletedCheckpoint) -> None:
        """Keep a subsumed checkpoint until it may be cleaned."""
        with self._changed:
            self._subsumed[checkpoint.checkpoint_id] = checkpoint

    def clean_subsumed(
        self, lowest_valid_id: int, in_use_ids: AbstractSet[int], post_cleanup: Callable[[], None] = _nothing
    ) -> None:
        """
        Clean every subsumed checkpoint that nothing needs; the others stay in the queue.

        :param lowest_valid_id: The oldest checkpoint that is retained.
        :param in_use_ids: Checkpoints that hold files which others use.
        :param post_cleanup: Runs after each cleaning.
        :raises CoordinatorError: after the cleaner was closed.
        """
        with self._changed:
            ready = [i for i in sorted(self._subsumed) if i < lowest_valid_id and i not in in_use_ids]
            self._begin(len(ready))
            checkpoints = [self._subsumed.pop(i) for i in ready]
        for checkpoint in checkpoints:
            ended = partial(self._end_subsumed, checkpoint, post_cleanup)
            self._run(self._stages_of(checkpoint, checkpoint.properties.discard_on_subsumed), ended)

    def clean_checkpoint(
        self, checkpoint: CompletedCheckpoint, should_discard: bool, post_cleanup: Callable[[], None] = _nothing
    ) -> None:
        """
        Clean a completed checkpoint.

        :param should_discard: Whether its bytes go; if not, the log says where they are.
        :param post_cleanup: Runs afterwards, also if something could not be deleted.
        :raises CoordinatorError: after the cleaner was closed.
        """
        with self._changed:
            self._begin(1)
        ended = partial(self._end_checkpoint, checkpoint, should_discard, post_cleanup)
        self._run(self._stages_of(checkpoint, should_discard), ended)

    def clean(self, plan: DiscardPlan, what: str, post_cleanup: Callable[[], None] = _nothing) -> None:
        """
        Clean what never became a completed checkpoint: a pending one, or state that came too late.

        :param what: Names it in the log.
        :param post_cleanup: Runs afterwards, also if something could not be deleted.
        :raises CoordinatorError: after the cleaner was closed.
        """
        with self._changed:
            self._begin(1)
        self._run(self._stages(plan), partial(self._end, what, post_cleanup))

    def close(self, timeout_seconds: float | None = None) -> bool:
        """
        Take no more and wait for what is in progress.

        :param timeout_seconds: How long to wait at most.
        :return: Whether everything has ended.
        """
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_seconds)

    def _begin(self, count: int) -> None:
        if self._is_closed:
            raise CoordinatorError(
                "Expected an open cleaner of checkpoints, found a closed one; what is left on storage is found by the sweep."
            )
        self._cleanings += count
        self._unfinished += count

    def _stages_of(self, checkpoint: CompletedCheckpoint, should_discard: bool) -> list[list[Job]]:
        if should_discard:
            return self._stages(DiscardPlan.of(checkpoint))
        where = (checkpoint.checkpoint_id, checkpoint.external_pointer)
        return [[partial(log.info, "Checkpoint %s is kept at %s", *where)]]

    def _stages(self, plan: DiscardPlan) -> list[list[Job]]:
        discarder = self._discarder
        metadata = [partial(discarder.discard_metadata, uri) for uri in (plan.metadata_uri,) if uri is not None]
        states = [partial(discarder.discard_state, handle) for handle in plan.states]
        location = [partial(discarder.discard_location, uri) for uri in (plan.location,) if uri is not None]
        return [[*metadata], [*states], [*location]]

    def _run(self, stages: list[list[Job]], ended: Callable[[list[Exception]], None]) -> None:
        StagedWork(self._executor, stages, ended, is_parallel=self._is_parallel).start()

    def _end_subsumed(
        self, checkpoint: CompletedCheckpoint, post_cleanup: Callable[[], None], errors: list[Exception]
    ) -> None:
        if errors:
            self.add_subsumed(checkpoint)
        self._end_checkpoint(checkpoint, checkpoint.properties.discard_on_subsumed, post_cleanup, errors)

    def _end_checkpoint(
        self,
        checkpoint: CompletedCheckpoint,
        was_discarded: bool,
        post_cleanup: Callable[[], None],
        errors: list[Exception],
    ) -> None:
        what = f"checkpoint {checkpoint.checkpoint_id}"
        if was_discarded and not errors:
            _carefully(partial(self._discarded, checkpoint), what)
        self._end(what, post_cleanup, errors)

    def _end(self, what: str, post_cleanup: Callable[[], None], errors: list[Exception]) -> None:
        if errors:
            log.warning("%s deletes of %s failed, the first with: %s", len(errors), what, errors[0], exc_info=errors[0])
        with self._changed:
            self._cleanings -= 1
        # What follows a cleaning may ask how many are in progress, and this one is not any more.
        _carefully(post_cleanup, what)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()


def _carefully(callback: Callable[[], None], what: str) -> None:
    try:
        callback()
    except Exception:
        log.exception("What follows the cleaning of %s failed", what)
