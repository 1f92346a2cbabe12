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
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_statecheck.checkpoint.codec import decode, form_of
from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY, MANIFEST_FILE
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    RequestLimitError,
    UnknownVersionError,
)
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.bounds import is_bounded
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import LARGEST_METADATA, SnapshotHandle
from airflow_provider_statecheck.storage.stored_json import MOST_VALUES, UNDECODABLE, parse
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


FORMAT_VERSION = 1
_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
# A typical footer fits into one read of this size; a larger footer needs a second read.
_TAIL_BYTES = 64 * 1024

_LARGEST_FOOTER = 32 * 1024 * 1024
"""Largest footer that is read, which describes 100,000 column chunks."""

ReadRange = Callable[[int, int], bytes]


class SnapshotWriter(StrEnum):
    """Writer of a snapshot's files, which also determines their reader."""

    SPARK = "spark"
    """Spark's Parquet writer; all files of the directory are part of the snapshot."""
    EXECUTORS = "executors"
    """Python on the executors; files outside the manifest are left over from repeated tasks."""


class SnapshotFile(NamedTuple):
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
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Return the identity of the snapshot."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the manifest as JSON; equal manifests have equal bytes."""
        document = {"format_version": FORMAT_VERSION, **form_of(self)}
        return json.dumps(document, separators=(",", ":"), default=form_of).encode()

    @classmethod
    def decode(cls, content: bytes) -> SnapshotManifest:
        """
        Return the manifest in the content of a file, with any number of files.

        :raises CorruptStateError: if the file is damaged.
        :raises UnknownVersionError: if another version of this package wrote it.
        """
        try:
            document = parse(content, is_bounded=False)
            version = document["format_version"]
            if version == FORMAT_VERSION:
                return decode(cls, document)
        except UNDECODABLE as error:
            raise CorruptStateError(
                f"Expected a snapshot manifest, found {content[:60]!r}; restore from an earlier checkpoint."
            ) from error
        raise UnknownVersionError(
            f"Expected a snapshot manifest of format {FORMAT_VERSION}, found format {version}; use the "
            "release of airflow-provider-statecheck that wrote it, or choose another checkpoint explicitly, as with "
            "restore_from.",
            format_version=version,
        )


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
            f"Expected the files that Spark wrote in {redact(data_uri)}, found none; configure one endpoint for Spark "
            "and this process."
        )
    described = in_parallel(lambda entry: _describe(storage, f"{data_uri}/{entry[0]}", *entry), sizes, is_local=False)
    return SnapshotManifest(
        schema_json=schema_json,
        files=tuple(file for file, _ in described),
        rows=sum(rows for _, rows in described),
    )


def read_manifest(storage: CheckpointStorage, handle: SnapshotHandle) -> SnapshotManifest:
    """
    Return the manifest of a snapshot. A driver, which has written it, reads one with any number of files.

    :raises CorruptStateError: if its size or digest differs from the handle.
    :raises CheckpointNotFoundError: if it is missing.
    :raises RequestLimitError: if it is too large for a server.
    """
    if is_bounded():
        _require_few(handle.manifest_size, LARGEST_METADATA, "bytes")
    uri = f"{handle.uri}/{MANIFEST_FILE}"
    content = storage.read_verified(uri, size=handle.manifest_size, sha256=handle.manifest_sha256)
    if is_bounded():
        _require_few(content.count(b",") + content.count(b"[") + content.count(b"{"), MOST_VALUES, "values")
    return SnapshotManifest.decode(content)


def _require_few(found: int, most: int, what: str) -> None:
    if found > most:
        raise RequestLimitError(
            f"Expected a snapshot manifest of at most {most} {what}, found {found}; read the snapshot in a process of "
            "your own, with read_snapshot, or write it with fewer files."
        )


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
        *(
            f"{name} was added"
            for name in sorted(found.keys() - expected.keys())
            if manifest.writer is SnapshotWriter.SPARK
        ),
        *(
            f"{name} has {found[name]} bytes instead of {expected[name]}"
            for name in sorted(expected.keys() & found.keys())
            if expected[name] != found[name]
        ),
    ]
    if differences:
        raise CorruptStateError(
            f"Expected the files in the manifest of the snapshot {redact(data_uri)}, found {len(differences)} "
            f"difference(s), first: {'; '.join(differences[:3])}; restore from an earlier checkpoint.",
            uri=redact(data_uri),
            differences=differences,
        )


def verify_footers(storage: CheckpointStorage, data_uri: str, manifest: SnapshotManifest) -> None:
    """
    Verify the footers of a snapshot's files, by a small read of each file.

    :raises CorruptStateError: if a footer was changed.
    """
    in_parallel(lambda file: verify_footer(storage, f"{data_uri}/{file.name}", file), manifest.files, is_local=False)


def verify_footer(storage: CheckpointStorage, uri: str, file: SnapshotFile) -> None:
    """
    Compare the footer of a file with its digest in the manifest.

    :raises CorruptStateError: if the footer was changed.
    """
    found = footer_digest(partial(storage.read_range, uri), uri, file.size_bytes)
    if found != file.footer_sha256:
        raise CorruptStateError(
            f"Expected the footer of {redact(uri)} to have the digest {file.footer_sha256[:12]}…, found another one; "
            "the file was changed after it was written.",
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


def _data_files(sizes: Mapping[str, int]) -> dict[str, int]:
    # Without the files that Spark skips in a directory, such as _SUCCESS, _temporary and local checksum files.
    return {name: size for name, size in sizes.items() if not any(p[:1] in "._" for p in name.split("/"))}


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
    if not tail.endswith(_MAGIC) or length + len(_MAGIC) > size_bytes or length > _LARGEST_FOOTER:
        raise _incomplete(uri, size_bytes)
    return tail[-length:] if length <= len(tail) else read(size_bytes - length, size_bytes)


def _count_rows(footer: bytes) -> int:
    # The magic bytes and the footer are enough to read the metadata.
    metadata: Any = parquet.read_metadata(io.BytesIO(_MAGIC + footer))
    return int(metadata.num_rows)


def _incomplete(uri: str, size_bytes: int) -> CorruptStateError:
    return CorruptStateError(
        f"Expected a complete Parquet file at {redact(uri)}, found {size_bytes} bytes without a readable footer; "
        "write the snapshot again.",
        uri=redact(uri),
    )


_BATCH_ROWS = 64 * 1024
_BUFFER_BYTES = 1024 * 1024
_FEW_ROWS = 1024
"""Maximum number of wanted rows for which the columns are read in small pieces instead of whole row groups."""
_SMALL_BUFFER_BYTES = 64 * 1024


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
    :param wanted: Number of rows that the caller is going to read; a few are read without the rest of their row group.
        By default all.
    :raises CorruptStateError: if a page was changed.
    :raises CheckpointNotFoundError: if the file is missing.
    :raises NotImplementedError: for a type that only Spark supports.
    """
    is_preview = wanted is not None and wanted <= _FEW_ROWS
    buffer_bytes = _SMALL_BUFFER_BYTES if is_preview else _BUFFER_BYTES
    try:
        source = io.BufferedReader(RangeReader(partial(storage.read_range, uri), file.size_bytes), buffer_bytes)
        # Spark writes a checksum with each page. Without checksums, only undecodable pages are detected. Spark's older
        # timestamps have microseconds; Arrow's default of nanoseconds would overflow.
        opened: Any = parquet.ParquetFile(
            source,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
            pre_buffer=not is_preview,
            buffer_size=buffer_bytes if is_preview else 0,
        )
        batch_rows = min(wanted or _BATCH_ROWS, _BATCH_ROWS)
        batches = opened.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False)
        for batch in with_all_rows(batches, opened.metadata.num_rows):
            batch.validate(full=True)
            yield batch
    except pa.ArrowNotImplementedError:
        raise
    except (OSError, pa.ArrowException) as error:
        # The reader reports some damaged headers with this class, too.
        if isinstance(error, MemoryError) and "alloc of size" in str(error):
            raise
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
