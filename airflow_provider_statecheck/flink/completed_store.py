"""
Store of the completed checkpoints of a job, and the cleaner of the files of ended ones.

The rows of the checkpoints are their state handles. Adding a checkpoint completes its row and drops the ones that it
subsumes; an unknown outcome of adding drops and deletes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedStorage,
    CompletedCheckpoint,
)
from airflow_provider_statecheck.checkpoint.aligned.steps import CheckpointDeleter, delete_ended
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.retention import beyond_retention
from airflow_provider_statecheck.checkpoint.states.handles import (
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    IncompatibleCheckpointError,
    UnknownVersionError,
)
from airflow_provider_statecheck.flink.state_handles import (
    RetrievableStateHandle,
    StateHandleStore,
    handle_name,
)

log = logging.getLogger(__name__)


def no_op() -> None:
    """Do nothing."""


class StateDiscarder(Protocol):
    """Deletes single files of a job; calls are idempotent and thread-safe."""

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the state of a handle.

        :raises StorageError: if the state may still exist.
        """


class CheckpointsCleaner:
    """
    Deletes the ended checkpoints of a coordinator in the background.

    The rows decide what may be deleted, and record what was. A file stays while a retained checkpoint, the manifest of
    a checkpoint in progress or the checkpoint that the leader restored names it, and while a task that may name it has
    not acknowledged. A deletion that fails is repeated by the next cleaning. Callbacks run without a lock.

    :param executor: The executor that runs the deletes.
    :param is_parallel: Whether checkpoints are deleted concurrently.
    """

    def __init__(
        self,
        rows: AlignedCheckpoints,
        leader: AttemptRef,
        storage: AlignedStorage,
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
        """The number of cleanings in progress, which limits new checkpoints."""
        return self._cleanings

    def clean(self, post_cleanup: Callable[[], None] = no_op) -> None:
        """
        Delete all ended checkpoints whose files nothing needs.

        :param post_cleanup: A callback that runs after each deletion, even if it failed.
        :raises CoordinatorError: if the cleaner was closed.
        :raises StaleAttemptError: if another leader has taken over.
        """
        discards = self._rows.effects(self._leader).effects.discards
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
            delete_ended(self._rows, self._leader, self._storage, self._deleter, checkpoint_ids)
        finally:
            with self._changed:
                self._started.difference_update(checkpoint_ids)

    def _discard_each(self, handles: Iterable[StreamStateHandle]) -> None:
        for handle in handles:
            self._discarder.discard_state(handle)

    def _start(self, delete: Callable[[], None], post_cleanup: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closed:
                raise CoordinatorError(
                    "Expected an open cleaner of checkpoints, found a closed one; run airflow statecheck gc to delete "
                    "the files."
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


DEFAULT_RETAINED = 2
_UNREADABLE = (CorruptStateError, CheckpointNotFoundError, IncompatibleCheckpointError)


class CompletedCheckpointStore:
    """
    The completed checkpoints that a restore may start from, oldest first.

    Call :meth:`recover` before any other method. Changes before it or after :meth:`shutdown` raise a
    ``CoordinatorError``.

    :param num_retained: The number of checkpoints to retain; a number below 1 means 2.
    :param skip_corrupt: Whether to skip unreadable checkpoints instead of raising.
    """

    def __init__(
        self,
        handles: StateHandleStore,
        num_retained: int = DEFAULT_RETAINED,
        *,
        skip_corrupt: bool = False,
    ) -> None:
        self._handles = handles
        self._num_retained = _at_least_one(num_retained)
        self._skip_corrupt = skip_corrupt
        self._lock = threading.Lock()
        # A recovery must not overlook a checkpoint that is added between its read of the rows and its end.
        self._changes = threading.RLock()
        self._retained: dict[int, CompletedCheckpoint] = {}
        self._is_recovered = False
        self._is_shut_down = False
        self._is_over = False

    def recover(self) -> None:
        """
        Load the stored checkpoints; repeat the call to load those that other processes added.

        :raises CorruptStateError: if a checkpoint is damaged.
        :raises CheckpointNotFoundError: if the files of a checkpoint are missing.
        :raises IncompatibleCheckpointError: if the format of a checkpoint is not supported.
        """
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        with self._changes:
            handles = [handle for handle, _ in self._handles.get_all_and_lock()]
            size = sum(handle.get_state_size() for handle in handles)
            log.debug("Loading %s completed checkpoints with %s bytes of metadata", len(handles), size)
            loaded = [self._read(handle) for handle in handles]
            with self._lock:
                self._retained = {each.checkpoint_id: each for each in loaded if each is not None}
                self._is_recovered = True

    def add_checkpoint_and_subsume_oldest(
        self, checkpoint: CompletedCheckpoint, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = no_op
    ) -> CompletedCheckpoint | None:
        """
        Add a checkpoint, then drop the checkpoints that it subsumes; adding it again has no effect.

        :param post_cleanup: A callback that runs after each deletion.
        :return: The newest dropped checkpoint, ``None`` if none was dropped.
        :raises CommitStateUnknownError: if the outcome of adding is unknown; nothing was dropped or deleted.
        :raises StaleAttemptError: if a newer attempt leads the job; nothing was added or dropped.
        """
        self._require_in_use()
        with self._changes:
            handle = self._handles.add_and_lock(handle_name(checkpoint.checkpoint_id), checkpoint)
            if not handle.record.is_restorable:
                return None
            with self._lock:
                self._retained[checkpoint.checkpoint_id] = checkpoint
        try:
            return self._subsume(cleaner, post_cleanup)
        except Exception:
            log.exception(
                "Checkpoint %s is complete, but older checkpoints could not be dropped", checkpoint.checkpoint_id
            )
            return None

    def get_latest_checkpoint(self) -> CompletedCheckpoint | None:
        """Return the newest checkpoint, ``None`` if there is none."""
        return next(reversed(self.get_all_checkpoints()), None)

    def get_latest_checkpoint_id(self) -> int:
        """Return the id of the newest checkpoint, 0 if there is none."""
        latest = self.get_latest_checkpoint()
        return latest.checkpoint_id if latest else 0

    def get_all_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return a new list of all checkpoints, oldest first."""
        with self._lock:
            if not self._is_recovered:
                raise _not_in_use("it was not recovered; call recover() first")
            return [self._retained[i] for i in sorted(self._retained)]

    def get_number_of_retained(self) -> int:
        """Return the number of retained checkpoints."""
        return len(self.get_all_checkpoints())

    def get_max_number_of_retained(self) -> int:
        """Return the configured number of checkpoints to retain; checkpoints that must stay may exceed it."""
        return self._num_retained

    def shutdown(
        self, status: JobStatus, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = no_op
    ) -> None:
        """
        Close the store; repeat the call after an error.

        With a terminal status, all checkpoints are dropped, and their properties decide which files are deleted.
        Otherwise the checkpoints remain for the next store.

        :param post_cleanup: A callback that runs after each deletion.
        """
        if self._is_over:
            return
        self._require_recovered()
        self._is_shut_down = True
        if status.is_globally_terminal:
            for kept in self._handles.clear_entries(status):
                log.info("Checkpoint %s is retained at %s", kept.checkpoint_id, kept.location)
            removed = self._handles.get_all_handles()
            log.info("The files of %s are to be deleted: %s", counted(len(removed), "checkpoint"), ", ".join(removed))
            self._clean(cleaner, post_cleanup)
        else:
            self._handles.release_all()
        with self._lock:
            self._retained = {}
            self._is_recovered = self._is_over = True

    def _read(self, handle: RetrievableStateHandle) -> CompletedCheckpoint | None:
        known = self._retained.get(handle.record.checkpoint_id)
        if known is not None and known.properties == handle.record.properties:
            return known
        try:
            return handle.retrieve_state()
        except _UNREADABLE as error:
            self._skip_or_raise(handle_name(handle.record.checkpoint_id), error)
            return None

    def _skip_or_raise(
        self, name: str, error: CorruptStateError | CheckpointNotFoundError | IncompatibleCheckpointError
    ) -> None:
        # A file of another release is intact.
        if not self._skip_corrupt or isinstance(error, UnknownVersionError):
            raise type(error)(
                f"Expected every completed checkpoint to be readable, found that {name} is not ({error}); restore its "
                f"files, or recover with skip_corrupt=True to skip it."
            ) from error
        log.error("Completed checkpoint %s cannot be read and is skipped: %s", name, error)

    def _subsume(self, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None]) -> CompletedCheckpoint | None:
        dropped = beyond_retention(self.get_all_checkpoints(), self.get_max_number_of_retained())
        for checkpoint in dropped:
            self._handles.release_and_try_remove(handle_name(checkpoint.checkpoint_id))
            with self._lock:
                self._retained.pop(checkpoint.checkpoint_id, None)
        log.debug("Retained %s checkpoints, dropped %s", self.get_number_of_retained(), len(dropped))
        self._clean(cleaner, post_cleanup)
        return dropped[-1] if dropped else None

    def _clean(self, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None]) -> None:
        try:
            cleaner.clean(post_cleanup)
        except Exception:
            log.exception("Ended checkpoints could not be cleaned; the next checkpoint retries")

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        self._require_recovered()

    def _require_recovered(self) -> None:
        if not self._is_recovered:
            raise _not_in_use("it was not recovered; call recover() first")


def _at_least_one(num_retained: int) -> int:
    if num_retained >= 1:
        return num_retained
    log.warning("Expected to retain at least 1 checkpoint, found %s; retaining %s", num_retained, DEFAULT_RETAINED)
    return DEFAULT_RETAINED


def _not_in_use(why: str) -> CoordinatorError:
    return CoordinatorError(f"Expected a completed checkpoint store that is in use, found that {why}.")
