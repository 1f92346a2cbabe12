"""
What one DataFrame snapshot consists of.

The manifest is the identity of a snapshot: two snapshots with equal manifests are the same bytes, and a file that is
missing, added or of another length is found by one listing. Rows are counted from the files' footers, never read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    IncompatibleCheckpointError,
)
from airflow_provider_statecheck.storage.uris import redact

FORMAT_VERSION = 2
# What Spark itself wrote keeps the first version, so that earlier releases restore it.
_VERSION_WITHOUT_WRITER = 1
_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
# The footer of an ordinary file fits into one such read; a larger one costs a second.
_TAIL_BYTES = 64 * 1024
_READERS = 16

ReadRange = Callable[[int, int], bytes]

Entry = TypeVar("Entry")
Result = TypeVar("Result")


class SnapshotStorage(Protocol):
    """What is needed of checkpoint storage."""

    def list_files(self, uri: str) -> Mapping[str, int]:
        """Return the size of every file below a directory, by its name relative to the directory."""
        ...

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from ``start`` up to and without ``end``."""
        ...


class SnapshotWriter(StrEnum):
    """Who wrote the files of a snapshot, and so who can read them."""

    SPARK = "spark"
    """Spark's own Parquet writer, into a directory of which every file is part of the snapshot."""
    EXECUTORS = "executors"
    """Python on the executors; files that the manifest does not name are left from tasks that were repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One Parquet file of a snapshot."""

    name: str
    """Relative to the snapshot's data directory."""
    size_bytes: int
    footer_sha256: str
    """Digest of the file's footer, which holds the place, length and statistics of every column chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """The files of a snapshot and what is in them."""

    schema_json: str
    """The DataFrame's own schema, as Spark writes it."""
    files: tuple[SnapshotFile, ...]
    """Ordered by name."""
    rows: int
    writer: SnapshotWriter = SnapshotWriter.SPARK

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the files have together."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Return the identity of the snapshot."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the manifest as JSON; equal manifests give equal bytes."""
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
        Return the manifest in a file.

        :raises CorruptStateError: The file is damaged.
        :raises IncompatibleCheckpointError: A newer version of this package wrote it.
        """
        try:
            document = json.loads(content)
            version = int(document["format_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(content) from error
        if not _VERSION_WITHOUT_WRITER <= version <= FORMAT_VERSION:
            raise IncompatibleCheckpointError(
                f"A snapshot manifest of format 1 to {FORMAT_VERSION} was expected, found format {version}; "
                "restore with the version of airflow-provider-statecheck that wrote it, or a newer one",
                format_version=version,
            )
        return _from_document(document, content)


def build_manifest(storage: SnapshotStorage, data_uri: str, schema_json: str) -> SnapshotManifest:
    """
    Describe the files that Spark has written below a directory.

    :param storage: Reads the directory.
    :param data_uri: The directory.
    :param schema_json: The schema of the DataFrame that was written.
    :raises CorruptStateError: A file is no complete Parquet file.
    :raises EnvironmentNotReadyError: Spark wrote to another place than the one that is read.
    """
    sizes = sorted(_data_files(storage.list_files(data_uri)).items())
    if not sizes:
        # Spark writes a file even where there is no row.
        raise EnvironmentNotReadyError(
            f"Expected the files that Spark wrote in {redact(data_uri)}, found none; let Spark and this process use one "
            f"endpoint for it."
        )
    described = _in_threads(lambda entry: _describe(storage, _uri_of(data_uri, entry[0]), *entry), sizes)
    return SnapshotManifest(
        schema_json=schema_json,
        files=tuple(file for file, _ in described),
        rows=sum(rows for _, rows in described),
    )


def verify_files(storage: SnapshotStorage, data_uri: str, manifest: SnapshotManifest) -> None:
    """
    Check by one listing that the files of a snapshot are those of its manifest.

    :raises CorruptStateError: A file is missing, was added to what Spark wrote, or has another size.
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
            f"The files of the snapshot {redact(data_uri)} differ from its manifest in {len(differences)} place(s), "
            f"first: {'; '.join(differences[:3])}; restore from an earlier checkpoint",
            uri=redact(data_uri),
            differences=differences,
        )


def verify_footers(storage: SnapshotStorage, data_uri: str, manifest: SnapshotManifest) -> None:
    """
    Check that the footers of a snapshot's files are those of its manifest, by one small read of each file.

    :raises CorruptStateError: A footer was changed.
    """
    _in_threads(lambda file: verify_footer(storage, _uri_of(data_uri, file.name), file), manifest.files)


def verify_footer(storage: SnapshotStorage, uri: str, file: SnapshotFile) -> None:
    """
    Check that the footer of one file is that of the manifest.

    :raises CorruptStateError: It was changed.
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

    :param read: Gives the bytes of the file from one position to before another.
    :raises CorruptStateError: The file is no complete Parquet file.
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
    # What Spark passes over when it reads a directory is no data: _SUCCESS, _temporary and local checksum files.
    return {name: size for name, size in sizes.items() if not any(p[:1] in "._" for p in name.split("/"))}


def _uri_of(data_uri: str, name: str) -> str:
    return f"{data_uri.rstrip('/')}/{name}"


def _in_threads(function: Callable[[Entry], Result], entries: Iterable[Entry]) -> list[Result]:
    # Each is one or two small reads that mostly wait for an object store.
    with ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="statecheck-footer") as pool:
        return list(pool.map(function, entries))


def _describe(storage: SnapshotStorage, uri: str, name: str, size_bytes: int) -> tuple[SnapshotFile, int]:
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

    # The footer alone, behind the leading mark, is a file whose metadata can be read; its data is not looked at.
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
        f"A complete Parquet file was expected, found {size_bytes} bytes without a readable footer in {redact(uri)}; "
        "write the snapshot again",
        uri=redact(uri),
    )


def _unreadable(content: bytes) -> CorruptStateError:
    return CorruptStateError(
        f"A snapshot manifest was expected, found {content[:60]!r}; restore from an earlier checkpoint"
    )
