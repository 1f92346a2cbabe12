"""Checkpoint options and location references that travel to tasks: Flink's ``CheckpointOptions``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_MAGIC = b"\x05\x5f\x3f\x18"


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """
    A place that the coordinator chose; no bytes at all mean the place that is configured.

    :param encoded: The reference as bytes.
    """

    encoded: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.encoded, bytes):
            raise InvalidConfigurationError(
                f"Expected a location reference as bytes, found {type(self.encoded).__name__}; make one with of_path()."
            )

    @classmethod
    def default(cls) -> CheckpointStorageLocationReference:
        """Return the reference to the configured place."""
        return DEFAULT_LOCATION

    @classmethod
    def of_path(cls, path: str) -> CheckpointStorageLocationReference:
        """
        Encode a path.

        :raises InvalidConfigurationError: for an empty path, or one that UTF-8 cannot express.
        """
        if not path:
            raise InvalidConfigurationError(
                "Expected the path of a location, found an empty one; use default() for none."
            )
        try:
            return cls(_MAGIC + path.encode())
        except UnicodeEncodeError as error:
            raise InvalidConfigurationError(
                "Expected a path that UTF-8 can express, found lone surrogates; correct the path."
            ) from error

    @property
    def is_default(self) -> bool:
        """Tell whether it means the configured place."""
        return not self.encoded

    @property
    def path(self) -> str:
        """
        Return the encoded path.

        :raises InvalidConfigurationError: for the default reference, and for bytes that no path was encoded to.
        """
        if self.is_default:
            raise InvalidConfigurationError(
                "Expected a reference to a path, found the default one; ask is_default first."
            )
        if len(self.encoded) <= len(_MAGIC):
            raise _undecodable(f"only {len(self.encoded)} bytes, which is too short")
        if not self.encoded.startswith(_MAGIC):
            raise _undecodable("bytes that begin otherwise")
        try:
            return self.encoded[len(_MAGIC) :].decode()
        except UnicodeDecodeError as error:
            raise _undecodable("a path that is no UTF-8") from error


def _undecodable(found: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected an encoded path as location reference, found {found}; it was made by another kind of storage or cut off."
    )


DEFAULT_LOCATION = CheckpointStorageLocationReference()


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    How a checkpoint is taken and where its bytes go; two of equal fields are equal.

    :param checkpoint_type: What is asked of the snapshot.
    :param target_location: Where its bytes go.
    :raises InvalidConfigurationError: if either is missing.
    """

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def __post_init__(self) -> None:
        require("checkpoint_type", self.checkpoint_type, lambda t: isinstance(t, CheckpointType), "a CheckpointType")
        is_reference = isinstance(self.target_location, CheckpointStorageLocationReference)
        require("target_location", self.target_location, lambda _: is_reference, "a CheckpointStorageLocationReference")

    @classmethod
    def for_checkpoint_with_default_location(cls) -> CheckpointOptions:
        """Return those of a checkpoint in the configured place."""
        return _CHECKPOINT_AT_DEFAULT_LOCATION

    @classmethod
    def for_savepoint(cls, location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """
        Return those of a savepoint.

        :param location: Where it is written.
        """
        return cls(CheckpointType.SAVEPOINT, location)


_CHECKPOINT_AT_DEFAULT_LOCATION = CheckpointOptions(CheckpointType.CHECKPOINT, DEFAULT_LOCATION)


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """
    Which checkpoint it is, and when.

    :param checkpoint_id: Its id, at least 0.
    :param timestamp: When the coordinator triggered it.
    :param received_at: When the task heard of it; by default at once.
    :raises InvalidConfigurationError: for a negative id.
    """

    checkpoint_id: int
    timestamp: datetime
    received_at: datetime | None = None

    def __post_init__(self) -> None:
        require("checkpoint_id", self.checkpoint_id, lambda number: number >= 0, "at least 0")
        if self.received_at is None:
            object.__setattr__(self, "received_at", self.timestamp)
