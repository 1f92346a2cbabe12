"""Changes that are too many for memory, in temporary files of this machine until the next snapshot."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from pathlib import Path

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError


class LocalSpill:
    """A directory that is made when it is needed and goes with this object."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir(), f"statecheck-state-{uuid.uuid4().hex}")
        self._is_made = False

    @property
    def uri(self) -> str:
        """Return where the files are."""
        return f"file://{self._path}"

    def open_stream(self) -> LocalStream:
        """
        Open a new file.

        :raises StorageError: if this machine has no space.
        """
        try:
            if not self._is_made:
                self._path.mkdir(mode=0o700)
                self._is_made = True
                # A backend that is forgotten rather than disposed of must not fill the disk.
                weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
            return LocalStream(self._path / uuid.uuid4().hex)
        except OSError as error:
            raise _failed(error) from error

    def close(self) -> None:
        """Delete all files; without effect the second time."""
        if self._is_made:
            shutil.rmtree(self._path, ignore_errors=True)
            self._is_made = False


class LocalStream:
    """A ``CheckpointStateOutputStream`` to a file that no checkpoint names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if this machine has no space.
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise _failed(error) from error

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell()

    def flush_to_file(self) -> None:
        """Do nothing: it is a file."""

    def close_and_get_handle(self) -> FileStateHandle:
        """
        Close the file and return where it is.

        :raises StorageError: if this machine has no space.
        """
        try:
            self._file.close()
        except OSError as error:
            raise _failed(error) from error
        return FileStateHandle(f"file://{self._path}", self._path.stat().st_size)

    def close(self) -> None:
        """Give the file up."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _failed(error: OSError) -> StorageError:
    return StorageError(f"State cannot be kept on this machine: {error}; make space, or raise memtable_bytes.")
