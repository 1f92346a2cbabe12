"""Directories of an operator in a checkpoint directory, and copies of files of other owners."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import STATE_DIRECTORY, epoch_name, shared_uri, slug, taskowned_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import StateCopies


@dataclass(frozen=True, slots=True)
class OperatorDirectories:
    """
    Directories of the operator of an attempt, in which all names of files contain the epoch of the attempt.

    They are the same for every implementation of the views of checkpoint storage.
    """

    storage: CheckpointStorage
    attempt: AttemptRef

    @property
    def shared(self) -> str:
        """The directory of what several checkpoints may reference; an operator sweeps only its own directories."""
        return shared_uri(self.storage.base_uri, self.attempt.job_id, self.attempt.operator_id)

    @property
    def shared_state(self) -> str:
        """The directory of the state that several checkpoints may reference."""
        return f"{self.shared}/{STATE_DIRECTORY}"

    @property
    def taskowned(self) -> str:
        """The directory of the state that the functions of the operator own."""
        return f"{taskowned_uri(self.storage.base_uri, self.attempt.job_id)}/{self.attempt.operator_id}"

    def new_snapshot_uri(self, name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
        """
        Return the URI of a new directory for the snapshot of a DataFrame, which checkpoints share.

        :param scope: Enclosing loops and their items, outermost first.
        """
        return f"{self.shared}/{slug(name, scope)}/{epoch_name(self.attempt.epoch)}"

    def owns(self, uri: str) -> bool:
        """Return whether a file is shared state or a snapshot of the operator."""
        # Files in a checkpoint directory do not count: the directory may be that of another owner's snapshot.
        return uri.startswith(f"{self.shared}/")

    def copies_of_borrowed_state(self) -> StateCopies:
        """
        Return copies, in shared state, of files of another owner, who may delete them.

        A repeated call resumes them.
        """
        return StateCopies(self.storage, self.shared_state, self.attempt.epoch, is_own=self.owns, resumes=True)
