"""The stream of one partition of raw state."""

from __future__ import annotations

from typing import BinaryIO

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class StatePartitionStreamProvider:
    """
    Gives the stream of one partition, or the error that its opening led to.

    :param stream: The stream.
    :param creation_error: What went wrong in its place.
    """

    def __init__(self, stream: BinaryIO | None = None, creation_error: Exception | None = None) -> None:
        if (stream is None) == (creation_error is None):
            raise InvalidConfigurationError(
                "Expected either a stream or the error in its place, found both or neither."
            )
        self._stream = stream
        self._creation_error = creation_error

    def get_stream(self) -> BinaryIO:
        """Return the stream, at the beginning of the partition; raises what went wrong when it was opened."""
        if self._stream is not None:
            return self._stream
        assert self._creation_error is not None  # noqa: S101 - for the type checker
        raise self._creation_error
