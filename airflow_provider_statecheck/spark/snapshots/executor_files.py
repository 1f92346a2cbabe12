"""The files of one snapshot as an executor reaches them, through fsspec."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, StateCheckError, StorageError
from airflow_provider_statecheck.storage.options import conceal
from airflow_provider_statecheck.storage.retries import RetryPolicy
from airflow_provider_statecheck.storage.schemes import open_filesystem
from airflow_provider_statecheck.storage.uris import redact

# Each part of an upload is held in memory, tens of MiB of it.
_PARTS_AT_ONCE = 2


class HiddenOptions:
    """
    Options of a filesystem, which may be credentials: they can be pickled, and are never shown.

    :param options: As :meth:`CheckpointStorage.open` takes them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def reveal(self) -> dict[str, Any]:
        """Return the options."""
        return dict(self._options)

    def __repr__(self) -> str:
        return "HiddenOptions(***)"


@dataclass(frozen=True, slots=True)
class ExecutorFiles:
    """The directory of a snapshot."""

    data_uri: str
    options: HiddenOptions

    def publish(self, local: Path, name: str) -> None:
        """
        Copy a finished local file into the directory.

        Only a whole file is ever sent: leaving a stream by an exception publishes what was written so far on several
        filesystems.
        """
        with self.failures_told(name):
            filesystem = self._filesystem()
            path, limits = self._path(filesystem, name), _upload_limits(filesystem)
            # Nobody else uses the name, so sending the file again changes nothing.
            RetryPolicy().call(lambda: filesystem.put_file(str(local), path, **limits), self._shown(name))

    def open(self, name: str, size_bytes: int) -> Any:
        """
        Open a file for reading.

        :raises CorruptStateError: if it is missing or has another size.
        :raises StorageError: if the storage fails.
        """
        filesystem = self._filesystem()
        path = self._path(filesystem, name)
        try:
            # Parquet asks for exactly what it needs, and for neighbouring columns at once.
            file = RetryPolicy().call(lambda: filesystem.open(path, "rb", cache_type="none"), self._shown(name))
        except FileNotFoundError as error:
            raise CorruptStateError(f"Expected the file {self._shown(name)} of a snapshot, found none.") from error
        found = _size(file)
        if found != size_bytes:
            file.close()
            raise CorruptStateError(
                f"Expected {size_bytes} bytes in {self._shown(name)}, found {found}; the file was changed after it was "
                "written."
            )
        return file

    @contextmanager
    def failures_told(self, name: str) -> Iterator[None]:
        """
        Use a file; what fails is told without the client's own words, which may hold credentials.

        :raises StorageError: if the storage fails, or the bytes cannot be read.
        """
        try:
            yield
        except StateCheckError:
            raise
        except Exception as error:
            said = conceal(str(error), self.options.reveal())
            # Without its cause: Spark writes the whole chain to its logs.
            raise StorageError(f"The storage failed at {self._shown(name)}: {type(error).__name__} {said}") from None

    def _filesystem(self) -> Any:
        return open_filesystem(self.data_uri, self.options.reveal())

    def _path(self, filesystem: Any, name: str) -> str:
        return f"{str(filesystem._strip_protocol(self.data_uri)).rstrip('/')}/{name}"

    def _shown(self, name: str) -> str:
        return f"{redact(self.data_uri)}/{name}"


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """Make a local directory where Spark keeps its own scratch files, which has room and goes with the executor."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return tempfile.TemporaryDirectory(prefix="statecheck-", dir=local if local and Path(local).is_dir() else None)


def _upload_limits(filesystem: Any) -> dict[str, int]:
    upload = getattr(filesystem, "_put_file", None)
    if upload is None or "max_concurrency" not in inspect.signature(upload).parameters:
        return {}
    return {"max_concurrency": _PARTS_AT_ONCE}


def _size(file: Any) -> int:
    end = int(file.seek(0, 2))
    file.seek(0)
    return end
