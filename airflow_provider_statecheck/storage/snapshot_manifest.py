"""
Manifest of a snapshot: schema, files and checksums, and its rows read by verified pages.

The manifest identifies the content of a snapshot: equal manifests mean equal files. One listing detects files that are
missing, added or of another size. Rows are counted from the footers of the files.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY, MANIFEST_FILE
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


FORMAT_VERSION = 2
# Manifests of Spark's writer keep version 1, which earlier releases can restore.
_VERSION_WITHOUT_WRITER = 1
_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
# A typical footer fits into one read of this size; a larger footer needs a second read.
_TAIL_BYTES = 64 * 1024
_READERS = 16

ReadRange = Callable[[int, int], bytes]

Entry = TypeVar("Entry")
Result = TypeVar("Result")


class SnapshotWriter(StrEnum):
    """Writer of a snapshot's files, which also determines their reader."""

    SPARK = "spark"
    """Spark's Parquet writer; all files of the directory are part of the snapshot."""
    EXECUTORS = "executors"
    """Python on the executors; files outside the manifest are left over from repeated tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A Parquet file of a snapshot."""

    name: str
    """Name relative to the snapshot's data directory."""
    size_bytes: int
    footer_sha256: str
    """Digest of the file's footer, which contains the offset, size and statistics of each column chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """Schema, files and number of rows of a snapshot."""

    schema_json: str
    """Schema of the DataFrame in Spark's JSON format."""
    files: tuple[SnapshotFile, ...]
    """Files in the order of their names."""
    rows: int
    writer: SnapshotWriter = SnapshotWriter.SPARK

    @property
    def size_bytes(self) -> int:
        """Return the total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Return the identity of the snapshot."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the manifest as JSON; equal manifests have equal bytes."""
        document = {
            **_writer_fields(self.writer),
            "schema": self.schema_json,
            "rows": self.rows,
            "files": [[file.name, file.size_bytes, file.footer_sha256] for file in self.files],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes) -> SnapshotManifest:
        """
        Return the manifest in the content of a file.

        :raises CorruptStateError: if the file is damaged.
        :raises IncompatibleCheckpointError: if a newer version of this package wrote it.
        """
        try:
            document = json.loads(content)
            version = int(document["format_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(content) from error
        if not _VERSION_WITHOUT_WRITER <= version <= FORMAT_VERSION:
            raise IncompatibleCheckpointError(
                f"Expected a snapshot manifest of format 1 to {FORMAT_VERSION}, found format {version}; restore with the "
                "version of airflow-provider-statecheck that wrote it, or a newer one.",
                format_version=version,
            )
        return _from_document(document, content)


def build_manifest(storage: CheckpointStorage, data_uri: str, schema_json: str) -> SnapshotManifest:
    """
    Return the manifest of the files that Spark has written to a directory.

    :param schema_json: Schema of the written DataFrame.
    :raises CorruptStateError: if a file is not a complete Parquet file.
    :raises EnvironmentNotReadyError: if there are no files, because Spark wrote to another location.
    """
    sizes = sorted(_data_files(storage.list_files(data_uri)).items())
    if not sizes:
        # Spark writes a file even for an empty DataFrame.
        raise EnvironmentNotReadyError(
            f"Expected the files that Spark wrote in {redact(data_uri)}, found none; configure one endpoint for Spark and "
            f"this process."
        )
    described = _in_threads(lambda entry: _describe(storage, _uri_of(data_uri, entry[0]), *entry), sizes)
    return SnapshotManifest(
        schema_json=schema_json,
        files=tuple(file for file, _ in described),
        rows=sum(rows for _, rows in described),
    )


def read_manifest(storage: CheckpointStorage, handle: SnapshotHandle) -> SnapshotManifest:
    """
    Return the manifest of a snapshot.

    :raises CorruptStateError: if its size or digest differs from the handle.
    :raises CheckpointNotFoundError: if it is missing.
    """
    uri = f"{handle.uri}/{MANIFEST_FILE}"
    return SnapshotManifest.decode(storage.read_verified(uri, size=handle.manifest_size, sha256=handle.manifest_sha256))


def read_verified_manifest(storage: CheckpointStorage, handle: SnapshotHandle) -> SnapshotManifest:
    """
    Return the manifest of a snapshot after a check of its files: their names, sizes and footers.

    :raises CorruptStateError: if the manifest or a file was changed.
    :raises CheckpointNotFoundError: if the manifest is missing.
    """
    manifest = read_manifest(storage, handle)
    data_uri = f"{handle.uri}/{DATA_DIRECTORY}"
    verify_files(storage, data_uri, manifest)
    verify_footers(storage, data_uri, manifest)
    return manifest


def verify_files(storage: CheckpointStorage, data_uri: str, manifest: SnapshotManifest) -> None:
    """
    Compare the names and sizes of a snapshot's files with its manifest, by one listing.

    :raises CorruptStateError: if a file is missing, has another size, or was added to a snapshot of Spark's writer.
    """
    expected = {file.name: file.size_bytes for file in manifest.files}
    found = _data_files(storage.list_files(data_uri))
    differences = [
        *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
        *(f"{name} was added" for name in _added(manifest, found)),
        *(
            f"{name} has {found[name]} bytes instead of {expected[name]}"
            for name in sorted(expected.keys() & found.keys())
            if expected[name] != found[name]
        ),
    ]
    if differences:
        raise CorruptStateError(
            f"Expected the files in the manifest of the snapshot {redact(data_uri)}, found {len(differences)} difference(s), "
            f"first: {'; '.join(differences[:3])}; restore from an earlier checkpoint.",
            uri=redact(data_uri),
            differences=differences,
        )


def verify_footers(storage: CheckpointStorage, data_uri: str, manifest: SnapshotManifest) -> None:
    """
    Verify the footers of a snapshot's files, by a small read of each file.

    :raises CorruptStateError: if a footer was changed.
    """
    _in_threads(lambda file: verify_footer(storage, _uri_of(data_uri, file.name), file), manifest.files)


def verify_footer(storage: CheckpointStorage, uri: str, file: SnapshotFile) -> None:
    """
    Compare the footer of a file with its digest in the manifest.

    :raises CorruptStateError: if the footer was changed.
    """
    found = footer_digest(partial(storage.read_range, uri), uri, file.size_bytes)
    if found != file.footer_sha256:
        raise CorruptStateError(
            f"Expected the footer of {redact(uri)} to have the digest {file.footer_sha256[:12]}…, found {found[:12]}…; the "
            f"file was changed after it was written.",
            uri=redact(uri),
        )


def footer_digest(read: ReadRange, uri: str, size_bytes: int) -> str:
    """
    Return the digest of a Parquet file's footer.

    :param read: Function that returns the bytes of the file from a start to before an end.
    :param uri: URI of the file, for messages.
    :raises CorruptStateError: if the file is not a complete Parquet file.
    """
    return hashlib.sha256(_read_footer(read, uri, size_bytes)).hexdigest()


def _writer_fields(writer: SnapshotWriter) -> dict[str, Any]:
    if writer is SnapshotWriter.SPARK:
        return {"format_version": _VERSION_WITHOUT_WRITER}
    return {"format_version": FORMAT_VERSION, "writer": writer.value}


def _added(manifest: SnapshotManifest, found: Mapping[str, int]) -> list[str]:
    if manifest.writer is SnapshotWriter.EXECUTORS:
        return []
    return sorted(found.keys() - {file.name for file in manifest.files})


def _data_files(sizes: Mapping[str, int]) -> dict[str, int]:
    # Without the files that Spark skips in a directory, such as _SUCCESS, _temporary and local checksum files.
    return {name: size for name, size in sizes.items() if not any(p[:1] in "._" for p in name.split("/"))}


def _uri_of(data_uri: str, name: str) -> str:
    return f"{data_uri.rstrip('/')}/{name}"


def _in_threads(function: Callable[[Entry], Result], entries: Iterable[Entry]) -> list[Result]:
    # Each entry needs one or two small reads; the latency of an object store dominates.
    with ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="statecheck-footer") as pool:
        return list(pool.map(function, entries))


def _describe(storage: CheckpointStorage, uri: str, name: str, size_bytes: int) -> tuple[SnapshotFile, int]:
    footer = _read_footer(partial(storage.read_range, uri), uri, size_bytes)
    digest = hashlib.sha256(footer).hexdigest()
    try:
        rows = _count_rows(footer)
    except (ValueError, OSError) as error:
        raise _incomplete(uri, size_bytes) from error
    return SnapshotFile(name=name, size_bytes=size_bytes, footer_sha256=digest), rows


def _read_footer(read: ReadRange, uri: str, size_bytes: int) -> bytes:
    tail = read(max(0, size_bytes - _TAIL_BYTES), size_bytes)
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if not tail.endswith(_MAGIC) or length + len(_MAGIC) > size_bytes:
        raise _incomplete(uri, size_bytes)
    return tail[-length:] if length <= len(tail) else read(size_bytes - length, size_bytes)


def _count_rows(footer: bytes) -> int:
    import pyarrow.parquet

    # The magic bytes and the footer are enough to read the metadata.
    metadata: Any = pyarrow.parquet.read_metadata(io.BytesIO(_MAGIC + footer))
    return int(metadata.num_rows)


def _from_document(document: Mapping[str, Any], content: bytes) -> SnapshotManifest:
    try:
        files = tuple(
            SnapshotFile(name=str(name), size_bytes=int(size), footer_sha256=str(digest))
            for name, size, digest in document["files"]
        )
        return SnapshotManifest(
            schema_json=str(document["schema"]),
            files=files,
            rows=int(document["rows"]),
            writer=SnapshotWriter(document.get("writer", SnapshotWriter.SPARK)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(content) from error


def _incomplete(uri: str, size_bytes: int) -> CorruptStateError:
    return CorruptStateError(
        f"Expected a complete Parquet file at {redact(uri)}, found {size_bytes} bytes without a readable footer; "
        "write the snapshot again.",
        uri=redact(uri),
    )


def _unreadable(content: bytes) -> CorruptStateError:
    return CorruptStateError(
        f"Expected a snapshot manifest, found {content[:60]!r}; restore from an earlier checkpoint."
    )


_BATCH_ROWS = 64 * 1024
_BUFFER_BYTES = 1024 * 1024
_FEW_ROWS = 1024
"""Maximum number of wanted rows for which the columns are read in small pieces instead of whole row groups."""
_SMALL_BUFFER_BYTES = 64 * 1024


def read_pages(storage: CheckpointStorage, uri: str, file: SnapshotFile) -> int:
    """
    Read all pages of a file and verify their checksums.

    :return: Number of rows of the file.
    :raises CorruptStateError: if a page was changed.
    :raises NotImplementedError: for a type that only Spark supports.
    """
    rows = 0
    for batch in read_batches(storage, uri, file):
        rows += batch.num_rows
    return rows


def read_batches(
    storage: CheckpointStorage,
    uri: str,
    file: SnapshotFile,
    columns: Sequence[str] | None = None,
    wanted: int | None = None,
) -> Iterator[Any]:
    """
    Yield the rows of a file as record batches, and verify the checksums of the pages that are read.

    :param columns: Names of the columns in the file; by default all.
    :param wanted: Number of rows that the caller is going to read; a few are read without the rest of their row group. By
        default all.
    :raises CorruptStateError: if a page was changed.
    :raises CheckpointNotFoundError: if the file is missing.
    :raises NotImplementedError: for a type that only Spark supports.
    """
    import pyarrow
    import pyarrow.parquet

    is_preview = wanted is not None and wanted <= _FEW_ROWS
    buffer_bytes = _SMALL_BUFFER_BYTES if is_preview else _BUFFER_BYTES
    try:
        source = io.BufferedReader(RangeReader(partial(storage.read_range, uri), file.size_bytes), buffer_bytes)
        # Spark writes a checksum with each page. Without checksums, only undecodable pages are detected. Spark's older
        # timestamps have microseconds; Arrow's default of nanoseconds would overflow.
        parquet: Any = pyarrow.parquet.ParquetFile(
            source,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
            pre_buffer=not is_preview,
            buffer_size=buffer_bytes if is_preview else 0,
        )
        batch_rows = min(wanted or _BATCH_ROWS, _BATCH_ROWS)
        batches = parquet.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False)
        for batch in with_all_rows(batches, parquet.metadata.num_rows):
            batch.validate(full=True)
            yield batch
    except pyarrow.ArrowNotImplementedError:
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise CorruptStateError(f"A page of {redact(uri)} cannot be read: {error}", uri=redact(uri)) from error


def with_all_rows(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """
    Yield record batches that PyArrow reads from a Parquet file.

    :param rows: Number of rows according to the footer.
    :raises OSError: if the batches have fewer rows in the end.
    """
    missing = rows
    for batch in batches:
        missing -= batch.num_rows
        yield batch
    if missing:
        # The header of a page has no checksum, and Arrow skips a page if its type was changed.
        raise OSError(f"Expected {rows} rows, found {rows - missing}; the header of a page was changed.")


class RangeReader(io.RawIOBase):
    """
    File that is read by ranges.

    :param read: Returns the bytes of the file from a start to before an end.
    :param size: Size of the file in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes | memoryview], size: int) -> None:
        self._read = read
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
        data = self._read(self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def column_name(position: int) -> str:
    """Return the name of a column, or of a field of a struct, in the files."""
    return f"_c{position}"
