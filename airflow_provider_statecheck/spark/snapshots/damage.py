"""
Which snapshot the error of a stage is about: Spark names the file that it could not read.

The file is read again before it is called damaged, because Spark says the same of a storage that did not answer.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.checkpoint.layout import DATA_DIRECTORY
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.spark.snapshots.manifest import SnapshotFile, SnapshotManifest, verify_footer
from airflow_provider_statecheck.storage.documents import UNREADABLE
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger(__name__)

# Arrow passes over some damage on which Spark fails: in headers of pages, and what Hadoop's own checksums find.
_UNDECODABLE = re.compile(r"ParquetDecodingException|can not read class org\.apache\.parquet\.format|ChecksumException")
_BATCH_ROWS = 64 * 1024
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot on storage."""

    uri: str
    manifest: SnapshotManifest

    def uri_of(self, file: SnapshotFile) -> str:
        """Return where one of its files is."""
        return f"{self.uri}/{DATA_DIRECTORY}/{file.name}"

    def file_in(self, text: str) -> SnapshotFile | None:
        """Return the file that a text names, whichever name the filesystem has in it."""
        # No other directory has this name, so the part of the path before it need not be compared.
        directory = f"{self.uri.rpartition('/')[2]}/{DATA_DIRECTORY}/"
        if directory not in text:
            return None
        return next((file for file in self.manifest.files if f"{directory}{file.name}" in text), None)


def find_damage(
    error: BaseException, storage: CheckpointStorage, snapshots: Iterable[StoredSnapshot]
) -> dict[str, str]:
    """
    Return what is wrong with the snapshots that an error names, by their URIs.

    :param error: What ended the stage; the errors that it was raised from count too.
    :param snapshots: Those that the stage may have read.
    """
    text = "\n".join(_texts(error))
    named = ((snapshot, snapshot.file_in(text)) for snapshot in snapshots)
    is_undecodable = _UNDECODABLE.search(text) is not None
    damaged: dict[str, str] = {}
    for snapshot, file in named:
        if file is not None and (problem := _problem_of(storage, snapshot.uri_of(file), file, is_undecodable)):
            damaged[snapshot.uri] = problem
    return damaged


def read_pages(storage: CheckpointStorage, uri: str, file: SnapshotFile) -> int:
    """
    Read every page of a file and compare its checksum.

    :return: How many rows the file has.
    :raises CorruptStateError: if a page was changed.
    :raises NotImplementedError: for a type that only Spark knows.
    """
    import pyarrow
    import pyarrow.parquet

    rows = 0
    try:
        source = io.BufferedReader(_RangeReader(storage, uri, file.size_bytes), _BUFFER_BYTES)
        # Spark writes a checksum with each page; without one, only what does not decode is found.
        parquet: Any = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            batch.validate(full=True)
            rows += batch.num_rows
    except pyarrow.ArrowNotImplementedError:
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise CorruptStateError(f"A page of {redact(uri)} cannot be read: {error}", uri=redact(uri)) from error
    return rows


def _texts(error: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield _text(error)
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unreachable:
        # The text of a Java error is asked of the JVM, which may be gone.
        return str(unreachable)


def _problem_of(storage: CheckpointStorage, uri: str, file: SnapshotFile, is_undecodable: bool) -> str:
    try:
        verify_footer(storage, uri, file)
        read_pages(storage, uri, file)
    except UNREADABLE as problem:
        return str(problem)
    except (StorageError, NotImplementedError) as error:
        log.warning("Whether %s is damaged could not be told: %s", redact(uri), error)
    return f"Spark cannot decode {redact(uri)}." if is_undecodable else ""


class _RangeReader(io.RawIOBase):
    """A file on checkpoint storage, read where it is asked for and never as a whole."""

    def __init__(self, storage: CheckpointStorage, uri: str, size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._size = size
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    @override
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._size)
        if end <= self._position:
            return 0
        data = self._storage.read_range(self._uri, self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
