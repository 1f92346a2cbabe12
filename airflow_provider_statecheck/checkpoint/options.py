"""Checkpoint options and storage locations in messages to tasks: Flink's ``CheckpointOptions``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAGIC = b"\x05\x5f\x3f\x18"


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """
    Reference to a storage location that the coordinator chose.

    :param encoded: Encoded path; empty for the configured location.
    """

    encoded: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.encoded, bytes):
            raise InvalidConfigurationError(
                f"Expected a location reference as bytes, found {type(self.encoded).__name__}; create one with of_path()."
            )

    @classmethod
    def default(cls) -> CheckpointStorageLocationReference:
        """Return the reference to the configured location."""
        return DEFAULT_LOCATION

    @classmethod
    def of_path(cls, path: str) -> CheckpointStorageLocationReference:
        """
        Encode a path.

        :raises InvalidConfigurationError: if the path is empty or cannot be encoded as UTF-8.
        """
        if not path:
            raise InvalidConfigurationError(
                "Expected the path of a location, found an empty one; use default() for the configured location."
            )
        try:
            return cls(_MAGIC + path.encode())
        except UnicodeEncodeError as error:
            raise InvalidConfigurationError(
                "Expected a path that can be encoded as UTF-8, found lone surrogates; correct the path."
            ) from error

    @property
    def is_default(self) -> bool:
        """Return whether it is the configured location."""
        return not self.encoded

    @property
    def path(self) -> str:
        """
        Return the decoded path.

        :raises InvalidConfigurationError: for the default reference, and for bytes that are not an encoded path.
        """
        if self.is_default:
            raise InvalidConfigurationError(
                "Expected a reference to a path, found the default one; check is_default first."
            )
        if len(self.encoded) <= len(_MAGIC):
            raise _undecodable(f"only {len(self.encoded)} bytes, which is too short")
        if not self.encoded.startswith(_MAGIC):
            raise _undecodable("bytes with another prefix")
        try:
            return self.encoded[len(_MAGIC) :].decode()
        except UnicodeDecodeError as error:
            raise _undecodable("a path that is not UTF-8") from error


def _undecodable(found: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected an encoded path as location reference, found {found}; use a reference from of_path() without truncation."
    )


DEFAULT_LOCATION = CheckpointStorageLocationReference()


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    Options of a checkpoint for the tasks that take it.

    :param checkpoint_type: Type of the snapshot.
    :param target_location: Location of its files.
    :raises InvalidConfigurationError: if either is missing or of another class.
    """

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def __post_init__(self) -> None:
        require("checkpoint_type", self.checkpoint_type, lambda t: isinstance(t, CheckpointType), "a CheckpointType")
        is_reference = isinstance(self.target_location, CheckpointStorageLocationReference)
        require("target_location", self.target_location, lambda _: is_reference, "a CheckpointStorageLocationReference")

    @classmethod
    def for_checkpoint_with_default_location(cls) -> CheckpointOptions:
        """Return the options of a checkpoint in the configured location."""
        return _CHECKPOINT_AT_DEFAULT_LOCATION

    @classmethod
    def for_savepoint(cls, location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """
        Return the options of a savepoint.

        :param location: Location of its files.
        """
        return cls(CheckpointType.SAVEPOINT, location)


_CHECKPOINT_AT_DEFAULT_LOCATION = CheckpointOptions(CheckpointType.CHECKPOINT, DEFAULT_LOCATION)


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """
    Id and time of a checkpoint.

    :param checkpoint_id: Id, at least 0.
    :param timestamp: Time of the trigger by the coordinator.
    :param received_at: Time at which the task received the trigger; ``timestamp`` by default.
    :raises InvalidConfigurationError: for a negative id.
    """

    checkpoint_id: int
    timestamp: datetime
    received_at: datetime | None = None

    def __post_init__(self) -> None:
        require("checkpoint_id", self.checkpoint_id, lambda number: number >= 0, "at least 0")
        if self.received_at is None:
            object.__setattr__(self, "received_at", self.timestamp)

    @property
    def timestamp_milliseconds(self) -> int:
        """Return the time of the trigger in milliseconds since 1970."""
        return (self.timestamp - _EPOCH) // timedelta(milliseconds=1)
