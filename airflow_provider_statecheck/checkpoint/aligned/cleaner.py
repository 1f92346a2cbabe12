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

log = logging.getLogger(__name__)

Job = Callable[[], None]


def no_op(*_: object) -> None:
    """Do nothing."""


class CheckpointsCleaner:
    """
    Deletes checkpoints in the background.

    A failed delete does not stop the others; a later cleaning deletes the rest of a subsumed checkpoint. Callbacks run
    without a lock.

    :param discarder: The deleter of files.
    :param executor: The executor that runs the deletes.
    :param is_parallel: Whether the files of one checkpoint are deleted concurrently.
    :param discarded: Called with each completed checkpoint after its last file was deleted.
    """

    def __init__(
        self,
        discarder: StateDiscarder,
        executor: Executor,
        *,
        is_parallel: bool = True,
        discarded: Callable[[CompletedCheckpoint], None] = no_op,
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
        """Return the number of cleanings in progress, which limits new checkpoints."""
        return self._cleanings

    @property
    def subsumed(self) -> tuple[CompletedCheckpoint, ...]:
        """Return the subsumed checkpoints that await cleaning, oldest first."""
        with self._changed:
            return tuple(self._subsumed[i] for i in sorted(self._subsumed))

    def add_subsumed(self, checkpoint: CompletedCheckpoint) -> None:
        """Queue a subsumed checkpoint for :meth:`clean_subsumed`."""
        with self._changed:
            self._subsumed[checkpoint.checkpoint_id] = checkpoint

    def clean_subsumed(
        self, lowest_valid_id: int, in_use_ids: AbstractSet[int], post_cleanup: Callable[[], None] = no_op
    ) -> None:
        """
        Delete the queued subsumed checkpoints that are no longer in use; the others stay in the queue.

        :param lowest_valid_id: The id of the oldest retained checkpoint.
        :param in_use_ids: The ids of checkpoints whose files others use.
        :param post_cleanup: A callback that runs after each cleaning.
        :raises CoordinatorError: if the cleaner was closed.
        """
        with self._changed:
            ready = [i for i in sorted(self._subsumed) if i < lowest_valid_id and i not in in_use_ids]
            self._begin(len(ready))
            checkpoints = [self._subsumed.pop(i) for i in ready]
        for checkpoint in checkpoints:
            ended = partial(self._end_subsumed, checkpoint, post_cleanup)
            self._run(self._stages_of(checkpoint, checkpoint.properties.discard_on_subsumed), ended)

    def clean_checkpoint(
        self, checkpoint: CompletedCheckpoint, should_discard: bool, post_cleanup: Callable[[], None] = no_op
    ) -> None:
        """
        Delete a completed checkpoint, or log the location of one to retain.

        :param should_discard: Whether to delete the files.
        :param post_cleanup: A callback that runs afterwards, even if a delete failed.
        :raises CoordinatorError: if the cleaner was closed.
        """
        with self._changed:
            self._begin(1)
        ended = partial(self._end_checkpoint, checkpoint, should_discard, post_cleanup)
        self._run(self._stages_of(checkpoint, should_discard), ended)

    def clean(self, plan: DiscardPlan, subject: str, post_cleanup: Callable[[], None] = no_op) -> None:
        """
        Delete the files of an aborted checkpoint or of a late acknowledgement.

        :param subject: The description for the log.
        :param post_cleanup: A callback that runs afterwards, even if a delete failed.
        :raises CoordinatorError: if the cleaner was closed.
        """
        with self._changed:
            self._begin(1)
        self._run(self._stages(plan), partial(self._end, subject, post_cleanup))

    def close(self, timeout_seconds: float | None = None) -> bool:
        """
        Reject further cleanings and wait for those in progress.

        :param timeout_seconds: The longest wait in seconds, ``None`` for no limit.
        :return: Whether all cleanings have ended.
        """
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_seconds)

    def _begin(self, count: int) -> None:
        if self._is_closed:
            raise CoordinatorError(
                "Expected an open cleaner of checkpoints, found a closed one; run airflow statecheck gc to delete the files."
            )
        self._cleanings += count
        self._unfinished += count

    def _stages_of(self, checkpoint: CompletedCheckpoint, should_discard: bool) -> list[list[Job]]:
        if should_discard:
            return self._stages(DiscardPlan.of(checkpoint))
        where = (checkpoint.checkpoint_id, checkpoint.external_pointer)
        return [[partial(log.info, "Checkpoint %s is retained at %s", *where)]]

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
        subject = f"checkpoint {checkpoint.checkpoint_id}"
        if was_discarded and not errors:
            _run_logged(partial(self._discarded, checkpoint), subject)
        self._end(subject, post_cleanup, errors)

    def _end(self, subject: str, post_cleanup: Callable[[], None], errors: list[Exception]) -> None:
        if errors:
            log.warning(
                "%s deletes of %s failed, the first with: %s", len(errors), subject, errors[0], exc_info=errors[0]
            )
        with self._changed:
            self._cleanings -= 1
        # The callback may read ``cleanings``, which must not count this cleaning.
        _run_logged(post_cleanup, subject)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()


def _run_logged(callback: Callable[[], None], subject: str) -> None:
    try:
        callback()
    except Exception:
        log.exception("A callback after the cleaning of %s failed", subject)


class StagedWork:
    """
    Runs jobs in stages.

    A failed job does not stop the others. No executor thread waits for another job.

    :param executor: The executor that runs the jobs.
    :param stages: The jobs; a stage starts after all jobs of the previous one have ended.
    :param ended: Called exactly once, after the last job, with the errors that the jobs raised.
    :param is_parallel: Whether the jobs of one stage run concurrently.
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
        self._waiting = [stage for stage in stages if stage] or [[no_op]]
        self._is_parallel = is_parallel
        self._ended = ended
        self._lock = threading.Lock()
        self._running = 0
        self._errors: list[Exception] = []

    def start(self) -> None:
        """Submit the first stage and return."""
        stage = self._waiting.pop(0)
        bundles = [[job] for job in stage] if self._is_parallel else [list(stage)]
        self._running = len(bundles)
        for bundle in bundles:
            self._submit(bundle)

    def _submit(self, jobs: Sequence[Job]) -> None:
        try:
            self._executor.submit(self._run, jobs)
        except RuntimeError as error:
            # The executor was shut down and will not run the jobs.
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
