"""
Exceptions of this package.

::

    StateCheckError                     base class; class attributes ``retryable`` and ``code``
      InvalidConfigurationError         also ValueError
        LocationNotAllowedError         a checkpoint references a file in a location that is not allowed
      EnvironmentNotReadyError          Java, pyspark, tables or a path is missing; nothing was started
      CheckpointError
        CheckpointNotFoundError         also LookupError
          PointerNotFoundError          no checkpoint or savepoint at a URI given by the user
        CheckpointDeclinedError         ``reason`` contains the reason
        CheckpointExpiredError
        IncompatibleCheckpointError     format or operator does not match
          UnknownVersionError           another release wrote the file, which is intact
        NoRestorableCheckpointError     all completed checkpoints of the operator are unreadable
        SavepointClaimedError            another job owns the savepoint
        StoppedWithSavepointError       the stage stopped as requested; ``pointer`` is its savepoint
      CoordinatorError
        StaleAttemptError               a newer attempt owns the operator; the caller must stop
        ConcurrentAttemptError          another running task, or this task in another run, works on this operator
        RunSupersededError              the job already has state of a later run
        OpenCommitError                 a sink has uncommitted output of completed checkpoints
        AccessDeniedError               the token or user has no permission
          TokenExpiredError             the caller needs a new token
        CorruptRowError                 a row cannot be read; ``table``, ``key`` and ``column`` name it
        CoordinatorUnavailableError     retryable; nothing was changed
        CommitStateUnknownError         retryable; the reply was lost, so nothing may be deleted
        HandleExistsError               a state handle with this name already exists
        HandleNotFoundError             also LookupError
        ResourceVersionError            another writer replaced the state handle
      StorageError
        CorruptStateError               checksum or length differs
        InvalidPointerError             text that cannot be the pointer of a checkpoint
      StateError
        UnknownStateError               also LookupError
        StateMigrationError             the types of the stored state cannot be migrated to the current types
        DuplicateNameError              a name is used twice in one scope
        StageExitError                  the code of a stage ended its process instead of its input
        PartFailedError                 parts of a step failed; ``parts`` has the input of each
        UnsupportedStateError           a value or a DataFrame that cannot be restored equal to the saved one
          UnfitOutputError              the target of a sink cannot hold the output; ``violations`` counts by column
        UnsupportedPlanError            a step that cannot be computed in parts; ``operation`` is the reason
        SnapshotCancelledError          a snapshot was cancelled while it was written
        BackendRestoreError             the state backend could not be restored from a checkpoint
      SourceError
        SourceChangedError              files of a source changed after they were listed
        SourceRestartRequiredError      files of a source changed, and the run must start again
      QueryableStateError
        UnknownLocationError            the process has no location oracle for the job
        UnknownKvStateLocationError     no state of the job is registered under this name; also LookupError
        UnknownKvStateKeyGroupLocationError   no subtask has registered the key group; also LookupError
        UnknownKvStateIdError           the files of the state are gone; also LookupError
        UnknownKeyOrNamespaceError      the key has no state in the namespace; also LookupError
        ImmutableStateError             a write to state that was read from a checkpoint; also TypeError
        RequestLimitError               ``retry_after_seconds``: when the same request is accepted, if ever
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final


def _rebuild(cls: type[StateCheckError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StateCheckError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class StateCheckError(Exception):
    """
    Base class of all errors of this package.

    :param message: The expectation, the finding and the remedy.
    :param attributes: Details for programs; each becomes an attribute of the error.
    """

    retryable: ClassVar[bool] = False
    """``True`` if the same call can succeed later."""
    code: ClassVar[str] = "statecheck"
    """Stable identifier of the class, as sent by the API."""

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a detail of the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and multiprocessing pickle errors; the default __reduce__ drops keyword arguments of __init__.
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidConfigurationError(StateCheckError, ValueError):
    """A setting or argument is missing, unknown or out of range."""

    code = "invalid_configuration"


class LocationNotAllowedError(InvalidConfigurationError):
    """A checkpoint or savepoint references a file in a location that is not allowed; the file was not opened."""

    code = "location_not_allowed"


class EnvironmentNotReadyError(StateCheckError):
    """A prerequisite, such as Java, pyspark, a table or a path, is missing or has the wrong version."""

    code = "environment_not_ready"


class CheckpointError(StateCheckError):
    """Base class of errors about one checkpoint."""

    code = "checkpoint"


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No checkpoint has this id or pointer."""

    code = "checkpoint_not_found"


class PointerNotFoundError(CheckpointNotFoundError):
    """No checkpoint or savepoint is stored at the URI that the user gave; a retry does not help."""

    code = "pointer_not_found"


class CheckpointDeclinedError(CheckpointError):
    """The coordinator or a task refused to take the checkpoint."""

    code = "checkpoint_declined"


class CheckpointExpiredError(CheckpointError):
    """The checkpoint was not completed within its timeout."""

    code = "checkpoint_expired"


class IncompatibleCheckpointError(CheckpointError):
    """The format or the operator of the checkpoint does not match."""

    code = "incompatible_checkpoint"


class UnknownVersionError(IncompatibleCheckpointError):
    """Another release wrote the file, which this one cannot read; it is neither skipped nor deleted."""

    code = "unknown_version"


class NoRestorableCheckpointError(CheckpointError):
    """The operator has completed checkpoints, but none of them can be restored."""

    code = "no_restorable_checkpoint"


class SavepointClaimedError(CheckpointError):
    """Another operator claimed the savepoint and may delete it at any time."""

    code = "snapshot_claimed"


class StoppedWithSavepointError(CheckpointError):
    """The stage stopped with a savepoint, as requested."""

    code = "stopped_with_savepoint"


class CoordinatorError(StateCheckError):
    """The coordinator rejected a call or could not be reached."""

    code = "coordinator"


class StaleAttemptError(CoordinatorError):
    """A newer attempt owns the operator; the caller must stop and change nothing."""

    code = "stale_attempt"


class ConcurrentAttemptError(CoordinatorError):
    """Another running task, or the same task in another run, works on this operator."""

    code = "concurrent_attempt"


class RunSupersededError(CoordinatorError):
    """The job already has state of a later run."""

    code = "run_superseded"


class OpenCommitError(CoordinatorError):
    """The stage cannot finish because its sink has uncommitted output of completed checkpoints."""

    code = "open_commit"


class AccessDeniedError(CoordinatorError):
    """The caller's token or user has no permission for the call."""

    code = "access_denied"


class TokenExpiredError(AccessDeniedError):
    """The caller's token has expired; the caller needs a new one."""

    code = "token_expired"


class CorruptRowError(CoordinatorError):
    """A value in a row cannot be read; ``table``, ``key`` and ``column`` name it, and only the job of the row stops."""

    code = "corrupt_row"


class CoordinatorUnavailableError(CoordinatorError):
    """The coordinator's store did not respond; nothing was changed."""

    retryable = True
    code = "coordinator_unavailable"


class CommitStateUnknownError(CoordinatorError):
    """A commit may or may not have taken effect; nothing may be deleted."""

    retryable = True
    code = "commit_state_unknown"


class HandleExistsError(CoordinatorError):
    """A state handle with this name already exists."""

    code = "handle_exists"


class HandleNotFoundError(CoordinatorError, LookupError):
    """No state handle has this name, or it is being removed."""

    code = "handle_not_found"


class ResourceVersionError(CoordinatorError):
    """Another writer replaced the state handle; its version is not the expected one."""

    code = "resource_version"


class StorageError(StateCheckError):
    """An operation on the checkpoint storage failed."""

    retryable = True
    code = "storage"


class CorruptStateError(StorageError):
    """A file differs in length or checksum from its record."""

    retryable = False
    code = "corrupt_state"


class InvalidPointerError(StorageError):
    """A text cannot be the pointer of a checkpoint."""

    retryable = False
    code = "invalid_pointer"


class StateError(StateCheckError):
    """Base class of errors about the state of a stage."""

    code = "state"


class UnknownStateError(StateError, LookupError):
    """No state has this name."""

    code = "unknown_state"


class StateMigrationError(StateError):
    """The types of the stored state cannot be migrated to the current types."""

    code = "state_migration"


class DuplicateNameError(StateError):
    """A name is used twice in one scope."""

    code = "duplicate_name"


class UnsupportedStateError(StateError):
    """A value or a DataFrame cannot be restored equal to the saved one."""

    code = "unsupported_state"


class UnfitOutputError(UnsupportedStateError):
    """The target of a sink cannot hold values or columns of the output; nothing of the checkpoint was committed."""

    code = "unfit_output"


class UnsupportedPlanError(StateError):
    """A step cannot be computed in parts; ``operation`` names the operation that needs more than one row."""

    code = "unsupported_plan"


class StageExitError(StateError):
    """The code of a stage ended its process, although the stage has not ended."""

    code = "stage_exit"


class PartFailedError(StateError):
    """Parts of a step failed; ``step`` is its name, and ``parts`` has the items that each failed part reads."""

    code = "part_failed"


class BackendRestoreError(StateError):
    """The state backend could not be restored from a checkpoint."""

    code = "backend_restore"


class SnapshotCancelledError(StateError):
    """A snapshot was cancelled while it was written; its files were removed."""

    code = "snapshot_cancelled"


class SourceError(StateCheckError):
    """Base class of errors about the source of a stage."""

    code = "source"


class SourceChangedError(SourceError):
    """Files of a source changed after they were listed."""

    code = "source_changed"


class SourceRestartRequiredError(SourceError):
    """Files of a source changed, and the source is configured to start the run again in this case."""

    code = "source_restart_required"


class QueryableStateError(StateCheckError):
    """Base class of errors about state that is read from outside of its stage."""

    code = "queryable_state"


class UnknownLocationError(QueryableStateError):
    """The process has no oracle that knows the locations of the job's state."""

    code = "unknown_location"


class UnknownKvStateLocationError(QueryableStateError, LookupError):
    """No state of the job is registered under this name."""

    code = "unknown_kv_state_location"


class UnknownKvStateKeyGroupLocationError(QueryableStateError, LookupError):
    """No subtask has registered state for the key group."""

    code = "unknown_kv_state_key_group_location"


class UnknownKvStateIdError(QueryableStateError, LookupError):
    """The files of the state are gone, because newer checkpoints subsumed the checkpoint after the look-up."""

    code = "unknown_kv_state_id"


class UnknownKeyOrNamespaceError(QueryableStateError, LookupError):
    """The key has no state in the namespace, or its state has expired; a default of the descriptor is not returned."""

    code = "unknown_key_or_namespace"


class ImmutableStateError(QueryableStateError, TypeError):
    """State that was read from a checkpoint cannot be changed."""

    code = "immutable_state"


class RequestLimitError(QueryableStateError):
    """A request exceeds a limit of the server; ``retry_after_seconds`` is ``None`` if it is never accepted."""

    code = "request_limit"
    retry_after_seconds: float | None = None


A_RETRY_CANNOT_HELP: Final = (
    InvalidConfigurationError,
    LocationNotAllowedError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
    InvalidPointerError,
    PointerNotFoundError,
    NoRestorableCheckpointError,
    ConcurrentAttemptError,
    RunSupersededError,
    SavepointClaimedError,
    SourceChangedError,
    StateMigrationError,
    StoppedWithSavepointError,
    UnfitOutputError,
    UnsupportedPlanError,
)
"""Errors that fail a task at once, because each of its retries would end with them too."""


def errors_before(error: BaseException) -> Iterator[BaseException]:
    """Return an error and all errors that it followed: its causes, the errors that were being handled, and theirs."""
    return _walk(error, lambda each: (each.__cause__, each.__context__))


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Return an error and the chain of causes that were given for it, outermost first."""
    return _walk(error, lambda each: (each.__cause__,))


def shown_errors(error: BaseException) -> Iterator[BaseException]:
    """Return an error and the chain that its traceback shows, outermost first: causes, else what was being handled."""
    return _walk(error, lambda each: (each.__cause__ or (None if each.__suppress_context__ else each.__context__),))


def _walk(
    error: BaseException, before: Callable[[BaseException], tuple[BaseException | None, ...]]
) -> Iterator[BaseException]:
    # Errors can follow each other in a circle, and several can follow one.
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [found for found in reversed(before(each)) if found is not None]


def text_of(error: BaseException) -> str:
    """Return the text of an error, or that of the error that prevents it."""
    try:
        return str(error)
    except Exception as unreachable:
        # The text of a Java error is fetched from the JVM, which may have died.
        return str(unreachable)
