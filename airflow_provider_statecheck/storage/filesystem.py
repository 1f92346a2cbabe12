"""
Checkpoint storage on any fsspec filesystem.

Files are published atomically. Transient failures are retried, so all operations are idempotent: a write succeeds if
the file exists already with the same bytes, and a delete succeeds if the file is missing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from airflow_provider_statecheck.checkpoint.masking import remember_secrets
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.storage import file_operations, own_files
from airflow_provider_statecheck.storage.failures import RetryPolicy, advice, is_missing_bucket, is_taken, judged_alone
from airflow_provider_statecheck.storage.file_operations import ignoring_missing
from airflow_provider_statecheck.storage.guarded_places import GuardedPlaces, look_at
from airflow_provider_statecheck.storage.large_files import about_to_hold
from airflow_provider_statecheck.storage.locations import AllowedLocations, root_of_host
from airflow_provider_statecheck.storage.own_files import OwnDirectory
from airflow_provider_statecheck.storage.patience import CALL_SECONDS, DIRECTORY_SECONDS, HostPatience, seconds_for
from airflow_provider_statecheck.storage.uris import (
    conceal,
    deletable_root,
    harmless,
    is_local,
    normalise_base,
    open_filesystem,
    redact,
    secrets_in,
    serves,
)

Result = TypeVar("Result")


class CheckpointStorage:
    """
    Reads, writes and deletes files by absolute URI.

    URIs may be outside the checkpoint directory, also on another filesystem, because rows survive a change of the
    setting. Reads are limited to the allowed locations, because URIs are also taken from metadata files.

    A pickled storage opens its filesystem again in the other process, such as a Spark task. The pickle contains the
    options, which may be credentials; messages and ``repr`` do not.

    All methods raise :class:`StorageError` if the storage fails, and those that read a file raise
    :class:`CheckpointNotFoundError` if it is missing.

    :param base_uri: Normalised URI of the checkpoint directory.
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
        remember_secrets(secrets_in(self._options))
        self._retries = retries or RetryPolicy()
        self.allowed = AllowedLocations().around(base_uri)
        """The locations that may be read."""
        self._patience: HostPatience | None = None

    def __repr__(self) -> str:
        return f"CheckpointStorage({redact(self.base_uri)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.base_uri, dict(self._options), self._retries, self.allowed)

    @classmethod
    def open(cls, base_uri: str, **storage_options: Any) -> Self:
        """
        Open the storage of a checkpoint directory without creating anything.

        :param base_uri: A path or any fsspec URI.
        :raises InvalidConfigurationError: if the URI is invalid, or its filesystem is not installed.
        """
        base = normalise_base(base_uri)
        return cls(open_filesystem(base, storage_options), base, options=storage_options)

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the filesystem; they may contain credentials."""
        return self._options

    @property
    def is_local(self) -> bool:
        """Whether the checkpoint directory is on a local filesystem."""
        return is_local(self.base_uri)

    def allowing(self, *uris: str | None, locations: Iterable[str] = ()) -> Self:
        """
        Return this storage with additional allowed locations.

        :param uris: URIs from the user or the coordinator, never from a file.
        :param locations: Locations from the setting ``allowed_locations``.
        """
        return self.within(self.allowed.around(*uris).below(*locations))

    def allowing_own(self, uri: str) -> Self:
        """Return this storage with a directory that this process has made, also for a guarded storage."""
        return self.within(self.allowed.with_own(uri))

    def within(self, allowed: AllowedLocations) -> Self:
        """Return this storage with other allowed locations."""
        if allowed is self.allowed:
            return self
        other = object.__new__(type(self))
        vars(other).update({**vars(self), "allowed": allowed})
        return other

    def guarded(self, allowed: AllowedLocations, patience: HostPatience) -> Self:
        """
        Return this storage for a server or maintenance, which opens URIs that tasks have registered.

        :param allowed: The only locations that it opens, for any purpose; none is added later.
        :param patience: Deadlines of its calls.
        """
        other = self.within(allowed.fixed())
        other._patience = patience
        return other

    @property
    def _places(self) -> GuardedPlaces | None:
        return None if self._patience is None else GuardedPlaces(self.allowed, self._patience)

    def require_allowed(self, uri: str) -> None:
        """
        Require that this storage may read a URI; a guarded storage asks the location of the URI within a deadline.

        :raises LocationNotAllowedError: if the URI is not in an allowed location.
        :raises StorageError: if the storage is guarded, and the location does not answer.
        """
        (self._places or self.allowed).require(uri)

    def require_answer(self) -> None:
        """
        Require that the host of the checkpoint directory answers; only a guarded storage asks it.

        :raises StorageError: if it does not answer in time, or did not recently.
        """
        if self._patience is not None:
            self._patience.require_answer(self.allowed.host_of(self.base_uri), self._probe(self.base_uri))

    def reading(self, uri: str, action: Callable[[], Result], size: int) -> Result:
        """
        Run the read of a local file by other means than this storage, in an allowed location only.

        :param size: Number of bytes for the deadline of a guarded storage.
        :raises LocationNotAllowedError: if the file is not in an allowed location.
        """
        self.require_allowed(uri)
        return action() if self._places is None else self._places.ask(uri, action, seconds_for(size))

    def free_bytes(self) -> int | None:
        """Return the free space of the checkpoint directory in bytes; ``None`` if the storage is not local."""
        if not self.is_local:
            return None
        return self.call(self.base_uri, _free_bytes)

    def write_bytes(self, uri: str, data: bytes, *, overwrite: bool = False) -> None:
        """
        Publish a file.

        :raises StorageError: if the file exists with other bytes, or the storage fails.
        """
        seconds = self._seconds(lambda: len(data))
        self.call(uri, lambda filesystem, path: _write(filesystem, path, data, uri, overwrite=overwrite), seconds)

    def copy_file(self, source_uri: str, target_uri: str) -> None:
        """
        Copy a file, also between filesystems.

        :raises CheckpointNotFoundError: if the source is missing.
        """
        self.require_allowed(source_uri)
        seconds = self._seconds(lambda: self.size(source_uri))
        if not self.call(
            target_uri,
            lambda filesystem, path: _copy(*self._place_of(source_uri), filesystem, path, target_uri),
            seconds,
        ):
            raise _not_found_error(source_uri)

    def copy_directory(self, source_uri: str, target_uri: str, *, size_bytes: int = 1) -> None:
        """
        Copy all files of a directory.

        :param size_bytes: Minimum size of the directory; a smaller one was deleted at least in part.
        :raises CheckpointNotFoundError: if the directory or a part of it is missing.
        :raises StorageError: if the storage fails; the copy may be incomplete.
        """
        files = self.list_files(source_uri)
        if not files or sum(files.values()) < size_bytes:
            raise CheckpointNotFoundError(
                f"Expected {size_bytes} bytes or more in {redact(source_uri)}, found {sum(files.values())}; it was "
                "deleted.",
                uri=redact(source_uri),
            )
        for name in files:
            self.copy_file(f"{source_uri}/{name}", f"{target_uri}/{name}")

    def read_bytes(self, uri: str) -> bytes:
        """Return the content of a file, of any size; for files of jobs that others read, use :meth:`read_limited`."""
        return self._read(uri, _read_all, DIRECTORY_SECONDS)

    def read_limited(self, uri: str, limit: int) -> bytes:
        """
        Return the content of a file that may have at most ``limit`` bytes. A larger file is not read.

        :raises CorruptStateError: if the file is larger.
        """
        size = self.size(uri)
        if size > limit:
            raise CorruptStateError(
                f"Expected at most {limit} bytes in {redact(uri)}, found {size}; this package writes no such file.",
                uri=redact(uri),
            )
        about_to_hold(size)
        return self.read_range(uri, 0, size) if size else b""

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to, but not including, ``end``."""
        if not 0 <= start <= end:
            raise CorruptStateError(
                f"Expected a range of bytes in {redact(uri)}, found that from {start} to {end}; the record of the file "
                "was changed.",
                uri=redact(uri),
            )
        seconds = self._seconds(lambda: end - start)
        return self._read(uri, lambda filesystem, path: _read_range(filesystem, path, start, end), seconds)

    def read_sized(self, uri: str, size: int, *, limit: int | None = None) -> bytes:
        """
        Return the content of a file of a known size. A file of another size is not read.

        :param limit: Largest size, which bounds what the writer of the file has recorded; by default any.
        :raises CorruptStateError: if the file has another size, or a size above the limit is recorded.
        """
        if limit is not None and size > limit:
            raise _changed_error(uri, f"at most {limit} bytes", f"a record of {size} bytes")
        about_to_hold(size)
        found = self._read(
            uri, lambda filesystem, path: _read_if_sized(filesystem, path, size), self._seconds(lambda: size)
        )
        if isinstance(found, int):
            raise _changed_error(uri, f"{size} bytes", f"{found} bytes")
        if found is None:
            raise _not_found_error(uri)
        return found

    def read_verified(self, uri: str, *, size: int, sha256: str, limit: int | None = None) -> bytes:
        """
        Return the content of a file after verifying its size and checksum. A file of another size is not read.

        :param limit: Largest size as for :meth:`read_sized`.
        :raises CorruptStateError: if the size or the checksum differs, or the size is above the limit.
        """
        return verified(self.read_sized(uri, size, limit=limit), uri, size=size, sha256=sha256)

    def exists(self, uri: str) -> bool:
        """Return whether a file or directory exists."""
        return self._info(uri) is not None

    def is_directory(self, uri: str) -> bool:
        """Return whether a directory exists."""
        return (self._info(uri) or {}).get("type") == "directory"

    def size(self, uri: str) -> int:
        """
        Return the size of a file in bytes.

        :raises CheckpointNotFoundError: if the file is missing or is a directory.
        """
        size = self.size_or_none(uri)
        if size is None:
            raise _not_found_error(uri)
        return size

    def size_or_none(self, uri: str) -> int | None:
        """Return the size of a file in bytes, or ``None`` if it is missing or is a directory."""
        return _size_or_none(self._info(uri))

    def list_files(self, directory: str) -> dict[str, int]:
        """
        Return the sizes in bytes of all files below a directory by relative path; empty if it is missing.

        :raises StorageError: if any part of the directory cannot be listed.
        """
        if is_local(directory):
            return self._read(directory, lambda _, root: file_operations.list_files(Path(root)), DIRECTORY_SECONDS)
        return self._read(directory, _list_objects, DIRECTORY_SECONDS)

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the direct subdirectories of a directory; empty if it is missing."""
        if is_local(directory):
            return self._read(
                directory, lambda _, root: file_operations.list_directories(Path(root)), DIRECTORY_SECONDS
            )
        return self._read(directory, _list_directories, DIRECTORY_SECONDS)

    def delete_file(self, uri: str) -> None:
        """
        Delete a file; a missing file is success.

        :raises InvalidConfigurationError: if the file is not in a checkpoint or a snapshot, or a symbolic link leads to
            it.
        """
        self.delete_file_below(deletable_root(uri, self.base_uri), uri)

    def delete_file_below(self, root: str, uri: str) -> None:
        """
        Delete a file; a missing file is success.

        :param root: URI of the directory that the caller may delete from.
        :raises InvalidConfigurationError: if a symbolic link leads to the file.
        """
        if is_local(uri):
            self.call(uri, self._below(root, own_files.delete_file))
        else:
            self.call(uri, _delete_file)

    def delete_directory(self, uri: str) -> None:
        """
        Delete a directory recursively; a missing directory is success.

        :raises InvalidConfigurationError: if the directory is not part of a checkpoint or a snapshot, or a symbolic
            link leads to it.
        :raises StorageError: if the storage fails; the directory may be deleted in part.
        """
        root = deletable_root(uri, self.base_uri)
        if is_local(uri):
            self.call(uri, self._below(root, own_files.delete_directory), DIRECTORY_SECONDS)
        else:
            self.call(uri, file_operations.delete_all, DIRECTORY_SECONDS)

    def require_deletable(self, uri: str) -> None:
        """
        Require that a file or directory may be deleted or replaced.

        :raises InvalidConfigurationError: as :meth:`delete_file`.
        """
        root = deletable_root(uri, self.base_uri)
        if is_local(uri):
            self.call(uri, self._below(root, own_files.require_own))

    def remove_empty_directories(self, uri: str) -> None:
        """
        Remove a directory and its subdirectories unless they contain files.

        Only local storage is affected: object stores have no directories, and HDFS clients can delete a directory only
        together with its files.
        """
        if is_local(uri):
            operation = own_files.remove_empty_directories
            self.call(uri, lambda _, path: operation(OwnDirectory(Path(path))), DIRECTORY_SECONDS)

    def _below(self, root: str, operation: Callable[[OwnDirectory, Path], None]) -> Callable[[Any, str], None]:
        directory = OwnDirectory(Path(self._place_of(root)[1]), is_chosen=root == self.base_uri)
        return lambda _, path: operation(directory, Path(path))

    def _info(self, uri: str) -> dict[str, Any] | None:
        # fsspec's exists() returns False on any error.
        return self._read(uri, _info_or_none)

    def _read(self, uri: str, operation: Callable[[Any, str], Result], seconds: float = CALL_SECONDS) -> Result:
        if self._patience is None:
            self.allowed.require(uri)
        return self.call(uri, lambda filesystem, path: _reading(operation, filesystem, path), seconds)

    def _seconds(self, size: Callable[[], int]) -> float:
        """Return the deadline for a number of bytes; only a guarded storage has one."""
        return CALL_SECONDS if self._patience is None else seconds_for(size())

    def call(self, uri: str, operation: Callable[[Any, str], Result], seconds: float = CALL_SECONDS) -> Result:
        """
        Run an idempotent operation on a file, with retries.

        :param operation: Takes the fsspec filesystem and the path in it.
        :param seconds: Deadline of each call of a guarded storage.
        """
        with self._translating_errors(uri):
            places = self._places
            if places is None:
                filesystem, path = self._place_of(uri)
                return self._retries.call(lambda: operation(filesystem, path), redact(uri))
            return self._retries.call(lambda: self._asking(places, uri, operation, seconds), redact(uri))

    def _asking(
        self, places: GuardedPlaces, uri: str, operation: Callable[[Any, str], Result], seconds: float
    ) -> Result:
        # The clients of some stores connect when they are created.
        probe = None if is_local(uri) else self._probe(uri)
        return places.ask_allowed(uri, lambda: operation(*self._place_of(uri)), seconds, probe=probe)

    def _probe(self, uri: str) -> Callable[[], object]:
        """Return a short call to the host of a URI that does not depend on its path."""
        if is_local(uri):
            return partial(look_at, self.allowed.host_of(uri))
        return lambda: _info_or_none(*self._place_of(root_of_host(uri)))

    def locate(self, uri: str) -> tuple[Any, str]:
        """
        Return the fsspec filesystem of a URI and the path in it.

        :raises LocationNotAllowedError: if the storage is guarded, and the URI is not in an allowed location.
        """
        if self._patience is not None:
            self.require_allowed(uri)
        return self._place_of(uri)

    def _place_of(self, uri: str) -> tuple[Any, str]:
        filesystem = self._fs if serves(self._fs, self.base_uri, uri) else open_filesystem(uri, {})
        return filesystem, str(filesystem._strip_protocol(uri))

    @contextmanager
    def _translating_errors(self, uri: str) -> Iterator[None]:
        with judged_alone():
            try:
                yield
            except StateCheckError:
                raise
            except Exception as error:
                if isinstance(error, file_operations.NotAFileError):
                    raise _changed_error(uri, "a file", "a directory, a pipe or a device") from error
                # The clients of some object stores raise errors that are not OSErrors.
                if isinstance(error, FileNotFoundError) and not is_missing_bucket(error):
                    raise _not_found_error(uri) from error
                reason = conceal(str(error), self._options) or type(error).__name__
                message = f"The storage failed at {redact(uri)}: {reason.rstrip('.')}.{advice(error)}"
                raise StorageError(message, uri=redact(uri)) from harmless(error, self._options)


def _reopened(
    base_uri: str, options: dict[str, Any], retries: RetryPolicy, allowed: AllowedLocations
) -> CheckpointStorage:
    filesystem = open_filesystem(base_uri, options)
    return CheckpointStorage(filesystem, base_uri, options=options, retries=retries).within(allowed)


def _free_bytes(_: Any, root: str) -> int:
    path = Path(root)
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free


def verified(data: bytes, uri: str, *, size: int, sha256: str | None) -> bytes:
    """
    Return the content of a file after verifying its size, and its checksum if it is known.

    :raises CorruptStateError: if the size or the checksum differs.
    """
    if len(data) != size:
        raise _changed_error(uri, f"{size} bytes", f"{len(data)} bytes")
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        # A digest of what was found would tell a reader of the error about a file that only this process may read.
        raise _changed_error(uri, f"{size} bytes with sha256 {sha256[:12]}…", f"{size} bytes with another one")
    return data


def _write(filesystem: Any, path: str, data: bytes, uri: str, *, overwrite: bool) -> None:
    try:
        file_operations.write(filesystem, path, data, overwrite=overwrite)
    except Exception as error:
        if is_missing_bucket(error):
            raise
        if isinstance(error, FileNotFoundError):
            # The retry of a completed multipart upload, whose reply was lost, reports an unknown upload.
            if not _holds(filesystem, path, data):
                raise StorageError(f"Cannot write {redact(uri)}: {redact(str(error))}") from error
        elif not is_taken(error):
            raise
        # Equal bytes mean that an earlier call of this write succeeded.
        elif not _holds(filesystem, path, data):
            raise StorageError(
                f"Expected no file or equal bytes at {redact(uri)}, found other bytes; two writers share a directory.",
                uri=redact(uri),
            ) from error


def _copy(source_filesystem: Any, source: str, filesystem: Any, path: str, uri: str) -> bool:
    """Copy a file, and return whether the source exists."""
    try:
        file_operations.copy_file(source_filesystem, source, filesystem, path)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise
        if _info_or_none(source_filesystem, source) is not None:
            raise StorageError(f"Cannot write {redact(uri)}: {redact(str(error))}", uri=redact(uri)) from error
        return False
    return True


def _holds(filesystem: Any, path: str, data: bytes) -> bool:
    with suppress(FileNotFoundError):
        return bool(filesystem.info(path)["size"] == len(data) and filesystem.cat_file(path) == data)
    return False


def _reading(operation: Callable[[Any, str], Result], filesystem: Any, path: str) -> Result:
    try:
        return operation(filesystem, path)
    except NotADirectoryError as error:
        raise FileNotFoundError(path) from error  # a file is in place of a directory above it


def _read_all(filesystem: Any, path: str) -> bytes:
    if filesystem.async_impl:
        return bytes(filesystem.cat_file(path))
    with file_operations.open_file(filesystem, path) as file:
        return bytes(file.read())


def _read_range(filesystem: Any, path: str, start: int, end: int) -> bytes:
    if filesystem.async_impl:
        return bytes(filesystem.cat_file(path, start=start, end=end))
    # fsspec's cat_file opens HDFS files as unseekable streams and then fails to seek.
    with file_operations.open_file(filesystem, path) as file:
        file.seek(start)
        return bytes(file.read(end - start))


def _read_if_sized(filesystem: Any, path: str, size: int) -> bytes | int | None:
    """Return the content of a file of this size, the size of another one, or ``None`` for a missing file."""
    found = _size_or_none(_info_or_none(filesystem, path))
    if found != size:
        return found
    # A range read bounds the memory if the file grows. Object stores reject a range read of an empty file.
    return _read_range(filesystem, path, 0, size) if size else b""


def _size_or_none(info: dict[str, Any] | None) -> int | None:
    return None if info is None or info["type"] == "directory" else int(info["size"])


def _info_or_none(filesystem: Any, path: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    with ignoring_missing():
        found = dict(filesystem.info(path))
    return found or None


def _list_objects(filesystem: Any, root: str) -> dict[str, int]:
    found = file_operations.find(filesystem, root).items()
    # Hadoop marks directories by objects whose names end with a slash.
    return {_relative_path(path, root): int(info["size"]) for path, info in found if not path.endswith("/")}


def _list_directories(filesystem: Any, root: str) -> list[str]:
    entries: list[dict[str, Any]] = []
    with ignoring_missing():
        entries = filesystem.ls(root, detail=True)
    # Object stores may list the marker object of the directory itself.
    found = (_relative_path(str(entry["name"]), root) for entry in entries if entry["type"] == "directory")
    return sorted(name for name in found if name)


def _delete_file(filesystem: Any, path: str) -> None:
    with ignoring_missing():
        filesystem.rm_file(path)


def _changed_error(uri: str, expected: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"Expected {expected} in {redact(uri)}, found {found}; the file was changed after it was written.",
        uri=redact(uri),
    )


def _not_found_error(uri: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"Expected a file at {redact(uri)}, found none.", uri=redact(uri))


def _relative_path(path: str, root: str) -> str:
    return path.rstrip("/").removeprefix(root.rstrip("/")).lstrip("/")
