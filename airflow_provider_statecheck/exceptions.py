"""
Every error that this package raises on purpose, in one tree.

::

    StateCheckError                     base; class attributes ``retryable`` and ``code``
      InvalidConfigurationError         also ValueError
        LocationNotAllowedError         a checkpoint names a file in a place that was not allowed
      EnvironmentNotReadyError          Java, pyspark, tables or a path is missing; nothing was started
      CheckpointError
        CheckpointNotFoundError         also LookupError
          PointerNotFoundError          nothing is where the user said that a checkpoint or savepoint is
        CheckpointDeclinedError         ``reason`` says why no checkpoint was taken
        CheckpointExpiredError
        IncompatibleCheckpointError     format or operator does not fit
        NoRestorableCheckpointError     there were checkpoints, none of them can be read
        SnapshotClaimedError            another job owns the savepoint
        StoppedWithSavepointError       somebody asked the stage to stop; ``pointer`` says where it goes on
      CoordinatorError
        StaleAttemptError               a newer attempt owns the operator; the caller must stop
        ConcurrentAttemptError          another live task, or the same one in another run, has the uid in this job
        RunSupersededError              the job's state stands at a later run
        OpenCommitError                 a sink has not committed everything that its stage completed
        AccessDeniedError               the token or user may not do that
          TokenExpiredError             a new token has to be asked for
        CoordinatorUnavailableError     retryable
        CommitStateUnknownError         the reply was lost; clean up nothing
        HandleExistsError               a state handle of this name is there already
        HandleNotFoundError             also LookupError
        ResourceVersionError            the state handle was replaced by somebody else
      StorageError
        CorruptStateError               checksum or length differs
        InvalidPointerError             text that cannot be the pointer of a checkpoint
      StateError
        UnknownStateError               also LookupError
        StateMigrationError             state of an earlier version cannot go on with the types of this one
        DuplicateNameError              a name is used twice in one scope
        UnsupportedStateError           a value or a DataFrame that cannot be saved faithfully
        SnapshotCancelledError          a snapshot was cancelled while it was written
        BackendRestoreError             the backend could not be restored from what the checkpoint names
      SourceError
        SourceChangedError              files are no longer what was listed
        SourceRestartRequiredError      they are not, and the stage is to begin again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar


def _rebuild(cls: type[StateCheckError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StateCheckError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class StateCheckError(Exception):
    """
    Base of all errors of this package.

    :param message: What was expected, what was found and what to do.
    :param attributes: Facts that a program may want; each becomes an attribute of the error.
    """

    retryable: ClassVar[bool] = False
    code: ClassVar[str] = "statecheck"

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a fact about the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and multiprocessing pickle errors; keyword arguments of __init__ would be lost by the default.
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidConfigurationError(StateCheckError, ValueError):
    """A setting or argument is out of its range."""

    code = "invalid_configuration"


class LocationNotAllowedError(InvalidConfigurationError):
    """A checkpoint or savepoint names a file in a place that was not allowed; it was not opened."""

    code = "location_not_allowed"


class EnvironmentNotReadyError(StateCheckError):
    """Something that must be there before work starts is missing or does not fit."""

    code = "environment_not_ready"


class CheckpointError(StateCheckError):
    """Something about one checkpoint."""

    code = "checkpoint"


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No checkpoint under that id or pointer."""

    code = "checkpoint_not_found"


class PointerNotFoundError(CheckpointNotFoundError):
    """Nothing is where the user said that a checkpoint or savepoint is; trying again does not help."""

    code = "pointer_not_found"


class CheckpointDeclinedError(CheckpointError):
    """The coordinator or a task refused to take the checkpoint."""

    code = "checkpoint_declined"


class CheckpointExpiredError(CheckpointError):
    """The checkpoint was not complete within its timeout."""

    code = "checkpoint_expired"


class IncompatibleCheckpointError(CheckpointError):
    """The checkpoint's format or operator does not fit."""

    code = "incompatible_checkpoint"


class NoRestorableCheckpointError(CheckpointError):
    """The operator has had completed checkpoints, but none of them can be restored."""

    code = "no_restorable_checkpoint"


class SnapshotClaimedError(CheckpointError):
    """Another operator claimed the savepoint and may delete it at any time."""

    code = "snapshot_claimed"


class StoppedWithSavepointError(CheckpointError):
    """The stage stopped because somebody asked for a savepoint with which it stops."""

    code = "stopped_with_savepoint"


class CoordinatorError(StateCheckError):
    """The coordinator refused or could not be reached."""

    code = "coordinator"


class StaleAttemptError(CoordinatorError):
    """A newer attempt owns the operator; the caller must stop and touch nothing."""

    code = "stale_attempt"


class ConcurrentAttemptError(CoordinatorError):
    """Another live task, or the same one in another run, uses the same uid in the same job."""

    code = "concurrent_attempt"


class RunSupersededError(CoordinatorError):
    """The state of the job stands at a later run than the one that asks for it."""

    code = "run_superseded"


class OpenCommitError(CoordinatorError):
    """A stage cannot finish while its sink has not committed what completed checkpoints hold."""

    code = "open_commit"


class AccessDeniedError(CoordinatorError):
    """The caller's token or user may not do what it asked for."""

    code = "access_denied"


class TokenExpiredError(AccessDeniedError):
    """The caller's token is too old; a new one has to be asked for."""

    code = "token_expired"


class CoordinatorUnavailableError(CoordinatorError):
    """The coordinator's store did not answer; nothing was changed."""

    retryable = True
    code = "coordinator_unavailable"


class CommitStateUnknownError(CoordinatorError):
    """A commit may or may not have taken effect; nothing may be deleted."""

    retryable = True
    code = "commit_state_unknown"


class HandleExistsError(CoordinatorError):
    """A state handle of this name is there already."""

    code = "handle_exists"


class HandleNotFoundError(CoordinatorError, LookupError):
    """No state handle of this name, or one that is being removed."""

    code = "handle_not_found"


class ResourceVersionError(CoordinatorError):
    """The state handle is not of the version that was to be replaced."""

    code = "resource_version"


class StorageError(StateCheckError):
    """Checkpoint storage failed."""

    retryable = True
    code = "storage"


class CorruptStateError(StorageError):
    """Bytes on storage differ in length or checksum from what was recorded."""

    retryable = False
    code = "corrupt_state"


class InvalidPointerError(StorageError):
    """Text that cannot be the pointer of a checkpoint."""

    retryable = False
    code = "invalid_pointer"


class StateError(StateCheckError):
    """Something about the state of a stage."""

    code = "state"


class UnknownStateError(StateError, LookupError):
    """No state under that name."""

    code = "unknown_state"


class StateMigrationError(StateError):
    """State was written with types from which those of this version cannot be reached."""

    code = "state_migration"


class DuplicateNameError(StateError):
    """A name was used twice in one scope."""

    code = "duplicate_name"


class UnsupportedStateError(StateError):
    """A value or DataFrame that could not be restored equal to what was saved."""

    code = "unsupported_state"


class BackendRestoreError(StateError):
    """The state backend could not be restored from what the checkpoint names."""

    code = "backend_restore"


class SnapshotCancelledError(StateError):
    """A snapshot was cancelled while it was written; nothing of it is left."""

    code = "snapshot_cancelled"


class SourceError(StateCheckError):
    """Something about where a stage reads from."""

    code = "source"


class SourceChangedError(SourceError):
    """Files of a source are no longer what was listed at the start."""

    code = "source_changed"


class SourceRestartRequiredError(SourceError):
    """Files of a source have changed, and the user wants the stage to begin again then."""

    code = "source_restart_required"
