"""Store of the completed checkpoints of a job: Flink's ``CompletedCheckpointStore``."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned.cleaner import CheckpointsCleaner
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.shared_state_registry import SharedStateRegistry
from airflow_provider_statecheck.checkpoint.properties import JobStatus, RestoreMode
from airflow_provider_statecheck.checkpoint.state_handles import RetrievableStateHandle, StateHandleStore
from airflow_provider_statecheck.checkpoint.subsumption import subsumable
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    HandleExistsError,
    HandleNotFoundError,
    IncompatibleCheckpointError,
)

log = logging.getLogger(__name__)

DEFAULT_RETAINED = 2
_DIGITS = 19
_UNREADABLE = (CorruptStateError, CheckpointNotFoundError, IncompatibleCheckpointError)


def nothing() -> None:
    """Do nothing."""


def handle_name(checkpoint_id: int) -> str:
    """Return the name of a checkpoint's handle; names are in the order of ids."""
    return f"chk-{checkpoint_id:0{_DIGITS}d}"


class CompletedCheckpointStore(Protocol):
    """
    The completed checkpoints that a restore may start from, oldest first.

    It is used between :meth:`recover` and :meth:`shutdown`; before and after that, whatever would change something raises
    a ``CoordinatorError``.
    """

    def recover(self) -> None:
        """
        Load what is there; it may be repeated, to see what another process added.

        :raises CorruptStateError: if one of them cannot be read, for then the latest may be older than it should be. So do
            a ``CheckpointNotFoundError`` and an ``IncompatibleCheckpointError``; the store can be told to leave such out.
        """
        ...

    def add_checkpoint_and_subsume_oldest(
        self, checkpoint: CompletedCheckpoint, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = nothing
    ) -> CompletedCheckpoint | None:
        """
        Add a checkpoint, then drop what it subsumes; adding the same one again changes nothing.

        :param cleaner: Who deletes the bytes of what was dropped.
        :param post_cleanup: Runs after each such deletion.
        :return: The newest of those that were dropped.
        :raises CommitStateUnknownError: if it may or may not have been added; nothing was deleted or dropped.
        :raises StaleAttemptError: if a newer attempt leads the job; nothing was added or dropped.
        """
        ...

    def get_latest_checkpoint(self) -> CompletedCheckpoint | None:
        """Return the newest."""
        ...

    def get_latest_checkpoint_id(self) -> int:
        """Return the id of the newest, or 0."""
        ...

    def get_all_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return all, oldest first; the list is the caller's."""
        ...

    def get_number_of_retained(self) -> int:
        """Return how many there are."""
        ...

    def get_max_number_of_retained(self) -> int:
        """Return how many are kept unless some of them must stay."""
        ...

    def shutdown(
        self, status: JobStatus, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = nothing
    ) -> None:
        """
        End with the job; it may be repeated until nothing is raised.

        Where the job is over, every checkpoint is forgotten, and its bytes are deleted or stay as its properties say. Where
        it goes on, everything stays for the store that comes next.
        """
        ...

    def requires_externalized_checkpoints(self) -> bool:
        """Tell whether a checkpoint needs metadata on storage to be added."""
        ...


class DefaultCompletedCheckpointStore:
    """
    Keeps a state handle for each checkpoint.

    :param handles: The handles; all of them are of checkpoints.
    :param registry: Learns of the files that recovered checkpoints share.
    :param num_retained: How many to keep; a number below 1 counts as 2.
    :param skip_corrupt: Leave a checkpoint out that cannot be read, instead of failing.
    """

    def __init__(
        self,
        handles: StateHandleStore[CompletedCheckpoint],
        registry: SharedStateRegistry,
        num_retained: int = DEFAULT_RETAINED,
        *,
        skip_corrupt: bool = False,
    ) -> None:
        self._handles = handles
        self._registry = registry
        self._num_retained = _at_least_one(num_retained)
        self._skip_corrupt = skip_corrupt
        self._lock = threading.Lock()
        self._retained: dict[int, CompletedCheckpoint] = {}
        self._is_recovered = False
        self._is_shut_down = False
        self._is_over = False

    def recover(self) -> None:
        """Load what is there."""
        if self._is_shut_down:
            raise _not_in_use("it was shut down; make a new one")
        found = {c.checkpoint_id: c for c in self._load()}
        for checkpoint_id in sorted(found.keys() - self._retained.keys()):
            checkpoint = found[checkpoint_id]
            mode = RestoreMode.NO_CLAIM if checkpoint.properties.unclaimed else RestoreMode.CLAIM
            self._registry.register_all_after_restored(checkpoint, mode)
        with self._lock:
            self._retained = found
            self._is_recovered = True

    def add_checkpoint_and_subsume_oldest(
        self, checkpoint: CompletedCheckpoint, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = nothing
    ) -> CompletedCheckpoint | None:
        """Add a checkpoint, then drop what it subsumes."""
        self._require_in_use()
        self._persist(checkpoint)
        with self._lock:
            self._retained[checkpoint.checkpoint_id] = checkpoint
        try:
            return self._subsume(cleaner, post_cleanup)
        except Exception:
            log.exception("Checkpoint %s is complete, but older ones could not be dropped", checkpoint.checkpoint_id)
            return None

    def get_latest_checkpoint(self) -> CompletedCheckpoint | None:
        """Return the newest."""
        return next(reversed(self.get_all_checkpoints()), None)

    def get_latest_checkpoint_id(self) -> int:
        """Return the id of the newest, or 0."""
        latest = self.get_latest_checkpoint()
        return latest.checkpoint_id if latest else 0

    def get_all_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return all, oldest first."""
        with self._lock:
            if not self._is_recovered:
                raise _not_in_use("it was not recovered; call recover() first")
            return [self._retained[i] for i in sorted(self._retained)]

    def get_number_of_retained(self) -> int:
        """Return how many there are."""
        return len(self.get_all_checkpoints())

    def get_max_number_of_retained(self) -> int:
        """Return how many are kept unless some of them must stay."""
        return self._num_retained

    def shutdown(
        self, status: JobStatus, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None] = nothing
    ) -> None:
        """End with the job."""
        if self._is_over:
            return
        if status.is_globally_terminal:
            retained = self.get_all_checkpoints()
            self._is_shut_down = True
            self._forget_all(retained, status, cleaner, post_cleanup)
        else:
            self._is_shut_down = True
            self._handles.release_all()
        with self._lock:
            self._retained = {}
            self._is_recovered = self._is_over = True

    def requires_externalized_checkpoints(self) -> bool:
        """Tell whether a checkpoint needs metadata on storage: yes, for a row holds no state."""
        return True

    def _load(self) -> list[CompletedCheckpoint]:
        names = self._handles.get_all_handles()
        handles = {name: handle for handle, name in self._handles.get_all_and_lock()}
        for name in names:
            handle = handles.get(name) or self._unlisted(name)
            if handle is not None:
                handles[name] = handle
        loaded = [self._read(name, handle) for name, handle in handles.items()]
        return [checkpoint for checkpoint in loaded if checkpoint is not None]

    def _unlisted(self, name: str) -> RetrievableStateHandle[CompletedCheckpoint] | None:
        """Find out why a name was left out where all handles were asked for."""
        try:
            return self._handles.get_and_lock(name)
        except HandleNotFoundError:
            self._finish_removal(name)
        except CorruptStateError as error:
            self._leave_out(name, error)
        return None

    def _finish_removal(self, name: str) -> None:
        try:
            self._handles.release_and_try_remove(name)
        except Exception:
            log.exception("The removal of the state handle %s could not be finished; a later start tries again", name)

    def _read(self, name: str, handle: RetrievableStateHandle[CompletedCheckpoint]) -> CompletedCheckpoint | None:
        known = {handle_name(i): checkpoint for i, checkpoint in self._retained.items()}
        if name in known:
            return known[name]
        try:
            checkpoint = handle.retrieve_state()
            _require_name(checkpoint, name)
        except _UNREADABLE as error:
            self._leave_out(name, error)
            return None
        return checkpoint

    def _leave_out(
        self, name: str, error: CorruptStateError | CheckpointNotFoundError | IncompatibleCheckpointError
    ) -> None:
        if not self._skip_corrupt:
            raise type(error)(
                f"Expected every completed checkpoint to be readable, found that {name} is not ({error}); bring its bytes "
                f"back, or recover with skip_corrupt=True to go on without it."
            ) from error
        log.error("The completed checkpoint %s cannot be read and is left out: %s", name, error)

    def _persist(self, checkpoint: CompletedCheckpoint) -> None:
        name = handle_name(checkpoint.checkpoint_id)
        try:
            self._handles.add_and_lock(name, checkpoint)
        except HandleExistsError:
            # Whoever added it may not have lived to tell.
            if not _is_same(self._handles.get_and_lock(name).retrieve_state(), checkpoint):
                raise

    def _subsume(self, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None]) -> CompletedCheckpoint | None:
        surplus = subsumable(self.get_all_checkpoints(), self._num_retained)
        dropped = [checkpoint for checkpoint in surplus if self._is_dropped(checkpoint)]
        for checkpoint in dropped:
            cleaner.add_subsumed(checkpoint)
        try:
            self._clean_below(min(self._retained), cleaner, post_cleanup)
        except Exception:
            log.exception("Subsumed checkpoints could not be cleaned; the next checkpoint tries again")
        return dropped[-1] if dropped else None

    def _is_dropped(self, checkpoint: CompletedCheckpoint) -> bool:
        """Forget a checkpoint; one that cannot be forgotten is tried again with the next."""
        try:
            is_gone = self._handles.release_and_try_remove(handle_name(checkpoint.checkpoint_id))
        except Exception:
            log.exception("Checkpoint %s is subsumed, but could not be dropped", checkpoint.checkpoint_id)
            return False
        if is_gone:
            with self._lock:
                self._retained.pop(checkpoint.checkpoint_id, None)
        return is_gone

    def _clean_below(self, lowest_id: int, cleaner: CheckpointsCleaner, post_cleanup: Callable[[], None]) -> None:
        cleaner.clean_subsumed(lowest_id, self._registry.unregister_unused(lowest_id), post_cleanup)

    def _forget_all(
        self,
        retained: list[CompletedCheckpoint],
        status: JobStatus,
        cleaner: CheckpointsCleaner,
        post_cleanup: Callable[[], None],
    ) -> None:
        errors: list[Exception] = []
        for checkpoint in retained:
            try:
                self._forget(checkpoint, status, cleaner, post_cleanup)
            except Exception as error:
                errors.append(error)
        _raise_first(errors)
        self._handles.clear_entries()
        # What was not discarded stays whole: the files that it shares too.
        self._clean_below(min(self._retained, default=sys.maxsize), cleaner, post_cleanup)

    def _forget(
        self,
        checkpoint: CompletedCheckpoint,
        status: JobStatus,
        cleaner: CheckpointsCleaner,
        post_cleanup: Callable[[], None],
    ) -> None:
        if not self._handles.release_and_try_remove(handle_name(checkpoint.checkpoint_id)):
            log.info("Checkpoint %s is in use and kept at %s", checkpoint.checkpoint_id, checkpoint.external_pointer)
            return
        should_discard = checkpoint.properties.discard_on(status)
        cleaner.clean_checkpoint(checkpoint, should_discard, post_cleanup)
        if should_discard:
            with self._lock:
                self._retained.pop(checkpoint.checkpoint_id, None)

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise _not_in_use("it was shut down; make a new one")
        if not self._is_recovered:
            raise _not_in_use("it was not recovered; call recover() first")


def _at_least_one(num_retained: int) -> int:
    if num_retained >= 1:
        return num_retained
    log.warning("Expected to retain at least 1 checkpoint, found %s; %s are retained", num_retained, DEFAULT_RETAINED)
    return DEFAULT_RETAINED


def _require_name(checkpoint: CompletedCheckpoint, name: str) -> None:
    if handle_name(checkpoint.checkpoint_id) != name:
        raise CorruptStateError(f"Expected the checkpoint {name} under that name, found {checkpoint.checkpoint_id}.")


def _is_same(one: CompletedCheckpoint, other: CompletedCheckpoint) -> bool:
    return one == other and (one.metadata_uri, one.metadata_sha256) == (other.metadata_uri, other.metadata_sha256)


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Another checkpoint could not be forgotten either: {other}")
        raise errors[0]


def _not_in_use(why: str) -> CoordinatorError:
    return CoordinatorError(f"Expected a store of completed checkpoints that is in use, but {why}.")
