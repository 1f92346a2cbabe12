"""
Checkpoint storage on any fsspec filesystem.

A file is published whole or not at all. What fails for a moment is tried again, and every call may be repeated: a write
whose reply was lost finds its own bytes, and that is success.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.allowed_locations import AllowedLocations
from airflow_provider_statecheck.storage.failures import RetryPolicy, advice, is_missing_bucket, is_taken, judged_alone
from airflow_provider_statecheck.storage.schemes import conceal, harmless, open_filesystem, serves
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, redact, require_deletable, scheme_of

Result = TypeVar("Result")


class CheckpointStorage:
    """
    Bytes by absolute URI.

    Writing the same bytes twice and deleting what is gone are both success, so that every step may be repeated. URIs may
    lie outside the checkpoint directory, and on another filesystem: rows outlive a change of that setting. What is read has
    to lie in an allowed place, for URIs come out of files too.

    :param filesystem: The fsspec filesystem.
    :param base_uri: The checkpoint directory, normalised.
    :param options: What the filesystem was opened with.
    :param retries: How often what fails for a moment is tried again.
    """

    def __init__(
        self,
        filesystem: Any,
        base_uri: str,
        *,
        options: Mapping[str, Any] | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        self._fs = filesystem
        self.base_uri = base_uri
        self._options = MappingProxyType(dict(options or {}))
        self._retries = retries or RetryPolicy()
        self.allowed = AllowedLocations().around(base_uri)
        """The places that may be read."""

    def __repr__(self) -> str:
        return f"CheckpointStorage({redact(self.base_uri)!r})"

    @classmethod
    def open(cls, base_uri: str, **storage_options: Any) -> Self:
        """
        Open the storage of a checkpoint directory; nothing is created yet.

        :param base_uri: A path or any fsspec URI.
        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: for a URI that is none, or whose filesystem is not installed.
        """
        base = normalise_base(base_uri)
        return cls(open_filesystem(base, storage_options), base, options=storage_options)

    @property
    def options(self) -> Mapping[str, Any]:
        """What another process needs to open the same storage; it may be credentials, so show it to nobody."""
        return self._options

    @property
    def is_local(self) -> bool:
        """Tell whether the bytes are files of this machine."""
        return _is_local(self.base_uri)

    def allowing(self, *uris: str | None, locations: Iterable[str] = ()) -> Self:
        """
        Return the same storage, which reads also where these directories are.

        :param uris: What the user or the coordinator named, never what was read from a file.
        :param locations: What the setting of that name says.
        """
        return self.within(self.allowed.around(*uris).below(*locations))

    def within(self, allowed: AllowedLocations) -> Self:
        """Return the same storage, which reads in these places and nowhere else."""
        if allowed is self.allowed:
            return self
        other = copy.copy(self)
        other.allowed = allowed
        return other

    def free_bytes(self) -> int | None:
        """
        Return how much space is left below the checkpoint directory, or ``None`` where the storage cannot tell.

        :raises StorageError: if the storage fails.
        """
        if not self.is_local:
            return None
        with self._mapped(self.base_uri):
            path = Path(self.locate(self.base_uri)[1])
            return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free

    def write_bytes(self, uri: str, data: bytes, *, overwrite: bool = False) -> None:
        """
        Publish a file.

        :param overwrite: Whether other bytes under this name may be replaced.
        :raises StorageError: if other bytes are there already, or the storage fails.
        """
        self.call(uri, lambda filesystem, path: _write(filesystem, path, data, uri, overwrite=overwrite))

    def copy_file(self, source_uri: str, target_uri: str) -> None:
        """
        Copy a file, to another filesystem too; repeating it is harmless.

        :raises CheckpointNotFoundError: if the source is missing.
        :raises StorageError: if the storage fails.
        """
        self.allowed.require(source_uri)
        source_filesystem, source = self.locate(source_uri)
        self.call(
            target_uri, lambda filesystem, path: file_operations.copy_file(source_filesystem, source, filesystem, path)
        )

    def copy_directory(self, source_uri: str, target_uri: str, *, size_bytes: int = 1) -> None:
        """
        Copy all files of a directory.

        :param size_bytes: How many bytes there are at least; with fewer, somebody deletes or deleted it.
        :raises CheckpointNotFoundError: if it is missing, in whole or in part.
        :raises StorageError: if the storage fails; part of the copy may be there.
        """
        files = self.list_files(source_uri)
        if not files or sum(files.values()) < size_bytes:
            raise CheckpointNotFoundError(
                f"Expected {size_bytes} bytes or more in {redact(source_uri)}, found {sum(files.values())}; it was deleted.",
                uri=redact(source_uri),
            )
        for name in files:
            self.copy_file(f"{source_uri}/{name}", f"{target_uri}/{name}")

    def read_bytes(self, uri: str) -> bytes:
        """
        Return a whole file.

        :raises CheckpointNotFoundError: if it is missing.
        :raises StorageError: if the storage fails.
        """
        return self._read(uri, lambda filesystem, path: bytes(filesystem.cat_file(path)))

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """
        Return the bytes from ``start`` to before ``end``.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the storage fails.
        """
        return self._read(uri, lambda filesystem, path: _read_range(filesystem, path, start, end))

    def read_sized(self, uri: str, size: int) -> bytes:
        """
        Return a whole file of a known size; one of another size is not read.

        :raises CorruptStateError: if it has another size.
        :raises CheckpointNotFoundError: if it is missing.
        :raises StorageError: if the storage fails.
        """
        found = self.size(uri)
        if found != size:
            raise _changed(uri, f"{size} bytes", f"{found} bytes")
        # A range, so that a file which grows meanwhile takes no more memory. Object stores have none of an empty file.
        return self.read_range(uri, 0, size) if size else b""

    def read_verified(self, uri: str, *, size: int, sha256: str) -> bytes:
        """
        Return a whole file if it is what was written; one of another size is not read.

        :raises CorruptStateError: if length or checksum differ.
        :raises CheckpointNotFoundError: if it is missing.
        :raises StorageError: if the storage fails.
        """
        data = self.read_sized(uri, size)
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise _changed(uri, f"{size} bytes with sha256 {sha256[:12]}…", f"{len(data)} bytes with {found[:12]}…")
        return data

    def exists(self, uri: str) -> bool:
        """
        Tell whether a file or directory is there.

        :raises StorageError: if the storage does not answer; that is not the same as no.
        """
        return self._info(uri) is not None

    def is_directory(self, uri: str) -> bool:
        """
        Tell whether a directory is there.

        :raises StorageError: if the storage does not answer.
        """
        info = self._info(uri)
        return info is not None and info["type"] == "directory"

    def size(self, uri: str) -> int:
        """
        Return how many bytes a file has.

        :raises CheckpointNotFoundError: if it is missing, or a directory.
        :raises StorageError: if the storage fails.
        """
        info = self._info(uri)
        if info is None or info["type"] == "directory":
            raise _not_found(uri)
        return int(info["size"])

    def list_files(self, directory: str) -> dict[str, int]:
        """
        Return the size in bytes of each file below a directory by its relative path; nothing if it is missing.

        :raises StorageError: if the storage fails; an incomplete list is never returned.
        """
        if _is_local(directory):
            return self._read(directory, lambda _, root: file_operations.list_files(Path(root)))
        return self._read(directory, _list_objects)

    def list_directories(self, directory: str) -> list[str]:
        """
        Return the names of the directories in a directory; nothing if it is missing.

        :raises StorageError: if the storage fails.
        """
        return self._read(directory, _list_directories)

    def delete_file(self, uri: str) -> None:
        """
        Delete a file; a missing one is success.

        :raises InvalidConfigurationError: if it is not in a checkpoint or a snapshot.
        :raises StorageError: if the storage fails.
        """
        require_deletable(uri, self.base_uri)
        self.call(uri, _delete_file)

    def delete_directory(self, uri: str) -> None:
        """
        Delete a directory with all that is in it; a missing one is success.

        :raises InvalidConfigurationError: if it is not a checkpoint or a snapshot, or in one.
        :raises StorageError: if the storage fails; part of it may be gone.
        """
        require_deletable(uri, self.base_uri)
        self.call(uri, file_operations.delete_all)

    def remove_empty_directories(self, uri: str) -> None:
        """
        Remove a directory and those below it, as far as they hold no file.

        Only on local storage: object stores have no directories, and clients of HDFS can only delete a directory with
        all that is in it.

        :raises StorageError: if the storage fails.
        """
        if _is_local(uri):
            self.call(uri, lambda _, path: file_operations.remove_empty_directories(Path(path)))

    def _info(self, uri: str) -> dict[str, Any] | None:
        # Not fsspec's exists(): that answers False whatever goes wrong.
        return self._read(uri, _info_or_none)

    def _read(self, uri: str, operation: Callable[[Any, str], Result]) -> Result:
        self.allowed.require(uri)
        return self.call(uri, operation)

    def call(self, uri: str, operation: Callable[[Any, str], Result]) -> Result:
        """
        Do something with a file that may be repeated, as often as the retries allow.

        :param operation: Gets the fsspec filesystem and the path in it.
        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the storage fails.
        """
        with self._mapped(uri):
            filesystem, path = self.locate(uri)
            return self._retries.call(lambda: operation(filesystem, path), redact(uri))

    def locate(self, uri: str) -> tuple[Any, str]:
        """Return the fsspec filesystem of a file, and the path in it."""
        filesystem = self._fs if serves(self._fs, self.base_uri, uri) else open_filesystem(uri, {})
        return filesystem, str(filesystem._strip_protocol(uri))

    @contextmanager
    def _mapped(self, uri: str) -> Iterator[None]:
        with judged_alone():
            try:
                yield
            except StateCheckError:
                raise
            except Exception as error:
                # Everything: the clients of some object stores raise errors that are no OSError.
                if isinstance(error, FileNotFoundError) and not is_missing_bucket(error):
                    raise _not_found(uri) from error
                said = conceal(str(error), self._options) or type(error).__name__
                message = f"The storage failed at {redact(uri)}: {said.rstrip('.')}.{advice(error)}"
                raise StorageError(message, uri=redact(uri)) from harmless(error, self._options)


def _write(filesystem: Any, path: str, data: bytes, uri: str, *, overwrite: bool) -> None:
    try:
        (file_operations.replace if overwrite else file_operations.create)(filesystem, path, data)
    except Exception as error:
        if is_missing_bucket(error):
            raise
        if isinstance(error, FileNotFoundError):
            # A multipart upload whose last reply was lost is unknown when it is completed again.
            if not _holds(filesystem, path, data):
                raise StorageError(f"Nothing can be written at {redact(uri)}: {redact(str(error))}") from error
        elif not is_taken(error):
            raise
        # Somebody was faster. Equal bytes mean that it was this very step, done twice.
        elif not _holds(filesystem, path, data):
            raise _taken(uri) from error


def _holds(filesystem: Any, path: str, data: bytes) -> bool:
    try:
        return bool(filesystem.info(path)["size"] == len(data) and filesystem.cat_file(path) == data)
    except FileNotFoundError:
        return False


def _read_range(filesystem: Any, path: str, start: int, end: int) -> bytes:
    if filesystem.async_impl:
        return bytes(filesystem.cat_file(path, start=start, end=end))
    # fsspec's cat_file opens a file of HDFS as one that cannot be sought, and then seeks.
    with filesystem.open(path, "rb") as file:
        file.seek(start)
        return bytes(file.read(end - start))


def _info_or_none(filesystem: Any, path: str) -> dict[str, Any] | None:
    try:
        return dict(filesystem.info(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_missing_bucket(error):
            raise
        return None


def _list_objects(filesystem: Any, root: str) -> dict[str, int]:
    found = file_operations.find(filesystem, root).items()
    # An object whose name ends with a slash marks a directory; Hadoop writes such.
    return {_relative(path, root): int(info["size"]) for path, info in found if not path.endswith("/")}


def _list_directories(filesystem: Any, root: str) -> list[str]:
    try:
        entries = filesystem.ls(root, detail=True)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise
        return []
    # Object stores may list the marker of the directory itself.
    found = (_relative(str(entry["name"]), root) for entry in entries if entry["type"] == "directory")
    return sorted(name for name in found if name)


def _delete_file(filesystem: Any, path: str) -> None:
    try:
        filesystem.rm_file(path)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise


def _taken(uri: str) -> StorageError:
    return StorageError(
        f"Expected no file or equal bytes at {redact(uri)}, found other bytes; two writers share a directory.",
        uri=redact(uri),
    )


def _changed(uri: str, expected: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"Expected {expected} in {redact(uri)}, found {found}; the file was changed after it was written.",
        uri=redact(uri),
    )


def _not_found(uri: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"Expected a file at {redact(uri)}, found none.", uri=redact(uri))


def _is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES


def _relative(path: str, root: str) -> str:
    return path.rstrip("/").removeprefix(root.rstrip("/")).lstrip("/")
