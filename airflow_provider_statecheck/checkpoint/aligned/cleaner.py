"""Background deletion of the files of ended checkpoints: Flink's ``CheckpointsCleaner``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows, EffectsOf, RecordDiscards
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotStorage, contents
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects
from airflow_provider_statecheck.checkpoint.records import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    streams_of,
)
from airflow_provider_statecheck.exceptions import CoordinatorError

log = logging.getLogger(__name__)


def no_op() -> None:
    """Do nothing."""


class CheckpointDeleter(Protocol):
    """Deletes the files of checkpoints; all calls are idempotent and thread-safe."""

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        """
        Delete the checkpoints that the effects discard, without the files that retained checkpoints name.

        :param pinned: URIs of further files that must stay.
        :return: The ids of the checkpoints that are deleted completely.
        """
        ...


class StateDiscarder(Protocol):
    """Deletes single files of a job; calls are idempotent and thread-safe."""

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the state of a handle.

        :raises StorageError: if the state may still exist.
        """
        ...


class CheckpointsCleaner:
    """
    Deletes the ended checkpoints of a coordinator in the background.

    The rows decide what may be deleted, and record what was. A file stays while a retained checkpoint, the manifest of a
    checkpoint in progress or the checkpoint that the leader restored names it, and while a task that may name it has not
    acknowledged. A deletion that fails is repeated by the next cleaning. Callbacks run without a lock.

    :param rows: The rows of the job.
    :param leader: The leader of the checkpoints.
    :param storage: The storage of manifests.
    :param deleter: The deleter of checkpoints.
    :param discarder: The deleter of single files.
    :param executor: The executor that runs the deletes.
    :param is_parallel: Whether checkpoints are deleted concurrently.
    """

    def __init__(
        self,
        rows: CoordinatorRows,
        leader: AttemptRef,
        storage: SnapshotStorage,
        deleter: CheckpointDeleter,
        discarder: StateDiscarder,
        executor: Executor,
        *,
        is_parallel: bool = True,
    ) -> None:
        self._rows = rows
        self._leader = leader
        self._storage = storage
        self._deleter = deleter
        self._discarder = discarder
        self._executor = executor
        self._is_parallel = is_parallel
        self._changed = threading.Condition()
        self._started: set[int] = set()
        self._cleanings = 0
        self._unfinished = 0
        self._is_closed = False

    @property
    def cleanings(self) -> int:
        """Return the number of cleanings in progress, which limits new checkpoints."""
        return self._cleanings

    def clean(self, post_cleanup: Callable[[], None] = no_op) -> None:
        """
        Delete all ended checkpoints whose files nothing needs.

        :param post_cleanup: A callback that runs after each deletion, even if it failed.
        :raises CoordinatorError: if the cleaner was closed.
        :raises StaleAttemptError: if another leader has taken over.
        """
        discards = self._rows.effects(EffectsOf(leader=self._leader)).effects.discards
        with self._changed:
            new = [c.checkpoint_id for c in discards if c.checkpoint_id not in self._started]
            self._started.update(new)
        for part in [[checkpoint_id] for checkpoint_id in new] if self._is_parallel else [new] if new else []:
            self._start(partial(self._delete, part), post_cleanup)

    def discard_states(self, handles: Iterable[StreamStateHandle]) -> None:
        """
        Delete the state of a rejected acknowledgement.

        :raises CoordinatorError: if the cleaner was closed.
        """
        self._start(partial(self._discard_each, tuple(handles)), no_op)

    def close(self, timeout_seconds: float | None = None) -> bool:
        """
        Reject further cleanings and wait for those in progress.

        :param timeout_seconds: The longest wait in seconds, ``None`` for no limit.
        :return: Whether all cleanings have ended.
        """
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_seconds)

    def _delete(self, checkpoint_ids: Sequence[int]) -> None:
        try:
            # Rows and manifests may have changed since the deletion was queued.
            found = self._rows.effects(EffectsOf(leader=self._leader, checkpoint_ids=tuple(checkpoint_ids)))
            deleted = self._deleter.discard(found.effects, self._named(found.manifests))
            if deleted:
                self._rows.record_discards(RecordDiscards(leader=self._leader, checkpoint_ids=deleted))
        finally:
            with self._changed:
                self._started.difference_update(checkpoint_ids)

    def _named(self, manifests: Iterable[AcknowledgementRecord]) -> frozenset[str]:
        # Several checkpoints may be in progress, each with a state of the same operator.
        states = chain.from_iterable(content.operator_states for content in contents(self._storage, manifests))
        streams = chain.from_iterable(streams_of(state) for state in states)
        return frozenset(s.uri for s in streams if isinstance(s, FileStateHandle | SegmentFileStateHandle))

    def _discard_each(self, handles: Iterable[StreamStateHandle]) -> None:
        for handle in handles:
            self._discarder.discard_state(handle)

    def _start(self, delete: Callable[[], None], post_cleanup: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closed:
                raise CoordinatorError(
                    "Expected an open cleaner of checkpoints, found a closed one; run airflow statecheck gc to delete the "
                    "files."
                )
            self._cleanings += 1
            self._unfinished += 1
        try:
            self._executor.submit(self._run, delete, post_cleanup)
        except RuntimeError:
            # The executor was shut down. The files are left to the next leader or to garbage collection.
            self._run(no_op, post_cleanup)

    def _run(self, delete: Callable[[], None], post_cleanup: Callable[[], None]) -> None:
        _run_logged(delete)
        with self._changed:
            self._cleanings -= 1
        # The callback may read ``cleanings``, which must not count this cleaning.
        _run_logged(post_cleanup)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()


def _run_logged(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        log.warning("A cleaning of checkpoints failed; the next one repeats it", exc_info=True)
