"""
Listing, copying and atomic publishing of files on local disks, object stores and HDFS.

- Local files are written to a hidden sibling, which is then linked or renamed.
- Object stores receive the whole object in one call. If they support a precondition, it requires that the name is free.
- Other filesystems, such as HDFS, receive a hidden sibling that is renamed. Several of them publish a partial file if
  an exception closes the stream.

Copies within one filesystem use its own copy call. Copies between two remote filesystems use a temporary local file.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from airflow_provider_statecheck.checkpoint.ids import temporary_name
from airflow_provider_statecheck.storage.failures import is_missing_bucket, is_unsupported

Item = TypeVar("Item")
Result = TypeVar("Result")
_COPY_BYTES = 1024 * 1024
PARALLEL_CALLS = 16
"""Number of concurrent calls to an object store."""
_WITH_CONDITIONAL_CREATE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
"""Schemes of filesystems that can create an object only if its name is free."""


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item], *, is_local: bool) -> list[Result]:
    """Call a function for each item, concurrently unless the files are local; raises the first error at the end."""
    if is_local:
        return [call(item) for item in items]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="statecheck-files") as pool:
        return list(pool.map(call, items))


@contextmanager
def ignoring_missing() -> Iterator[None]:
    """Ignore the error of a missing file, but not that of a missing bucket."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_missing_bucket(error):
            raise


def find(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    """
    Return fsspec's details of each file below a directory by its path; an empty dict if the directory is missing.

    :raises Exception: if any part of the directory cannot be listed; this is the client's error.
    """
    found: dict[str, dict[str, Any]] = {}
    with ignoring_missing():
        found = dict(filesystem.find(root, detail=True)) if _has_own_find(filesystem) else _walk(filesystem, root)
    return {path: info for path, info in found.items() if info.get("type") != "directory" and path != root}


def delete_all(filesystem: Any, root: str) -> None:
    """
    Delete a directory and its contents, if it exists.

    :raises Exception: if a file cannot be deleted; this is the client's error.
    """
    with ignoring_missing():
        filesystem.rm(root, recursive=True)
    # s3fs does not report keys that a batch could not delete; single deletes raise the cause.
    remaining = find(filesystem, root)
    for path in remaining:
        filesystem.rm_file(path)
    if remaining and find(filesystem, root):
        raise TimeoutError(f"files in {root} are still listed after they were deleted")


def _has_own_find(filesystem: Any) -> bool:
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    kind = type(filesystem)
    if issubclass(kind, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find
    return kind.find is not AbstractFileSystem.find


def _walk(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    # fsspec's own walk omits directories that it cannot list.
    found: dict[str, dict[str, Any]] = {}
    waiting = [root]
    while waiting:
        for entry in _entries(filesystem, waiting.pop(), root):
            path = str(entry["name"]).rstrip("/")
            if entry["type"] == "directory":
                waiting.append(path)
            else:
                found[path] = entry
    return found


def _entries(filesystem: Any, directory: str, root: str) -> list[dict[str, Any]]:
    try:
        entries = filesystem.ls(directory, detail=True)
        return [entry for entry in entries if entry["name"].rstrip("/") != directory.rstrip("/")]
    except FileNotFoundError:
        if directory == root:
            raise
        return []  # deleted in the meantime


class NotAFileError(OSError):
    """A directory, a pipe, a socket or a device is in place of a file."""


def open_file(filesystem: Any, path: str) -> BinaryIO:
    """
    Open a file for reading.

    :raises NotAFileError: for anything but a file on a local disk: a pipe would be waited for without an end, and a
        device has no end.
    """
    if not _is_local(filesystem):
        opened: BinaryIO = filesystem.open(path, "rb")
        return opened
    return os.fdopen(open_local(path), "rb")


def open_local(path: str) -> int:
    """
    Return a descriptor of a local file.

    :raises NotAFileError: if it is no file.
    """
    _require_file(Path(path).stat(), path)
    # Another process may have replaced the file by a pipe since.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_file(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_file(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(f"{path} is no file")


@contextmanager
def publishing(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """
    Yield a hidden sibling to write to; on success it durably becomes the file.

    :raises FileExistsError: if the file exists and ``overwrite`` is false.
    """
    make_directory(path.parent)
    temporary = path.parent / temporary_name(path.name)
    try:
        yield temporary
        sync(temporary)
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def list_files(directory: Path) -> dict[str, int]:
    """
    Return the size of each file below a directory by its relative path; an empty dict if the directory is missing.

    :raises OSError: if part of the directory cannot be read. fsspec would omit that part, and files that are unreadable
        for a moment would count as lost.
    """
    found: dict[str, int] = {}
    for parent, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                found[path.relative_to(directory).as_posix()] = path.stat().st_size
    return found


def list_directories(directory: Path) -> list[str]:
    """
    Return the names of the direct subdirectories of a directory, also of links to directories; empty if it is missing.

    fsspec would omit links, and the job whose directory was moved to another disk would be unknown.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
    return []


def _raise_unless_missing(error: OSError) -> None:
    # Writers may rename or delete their temporary directories during the listing.
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents durably."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # A file is durable only if the entries of its directories are.
    for created in reversed(missing):
        sync(created.parent)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(filesystem: Any, path: str, data: bytes, *, overwrite: bool) -> None:
    """
    Publish a file.

    :raises FileExistsError: if the name exists and may not be overwritten; or another error for which ``is_taken``
        returns true.
    """
    if not overwrite:
        if _is_created_conditionally(filesystem, path, data):
            return
        _require_missing(filesystem, path, path)  # a local retry must not need disk space
    if _is_local(filesystem):
        with publishing(Path(path), overwrite=overwrite) as temporary:
            temporary.write_bytes(data)
    elif _takes_whole_objects(filesystem):
        filesystem.pipe_file(path, data)
    else:
        _publish_by_rename(filesystem, path, data, overwrite=overwrite)


def _is_created_conditionally(filesystem: Any, path: str, data: bytes) -> bool:
    if not _protocols(filesystem) & _WITH_CONDITIONAL_CREATE:
        return False
    try:
        filesystem.pipe_file(path, data, mode="create")
    except Exception as error:
        if not is_unsupported(error):
            raise
        return False
    return True


def _require_missing(filesystem: Any, path: str, target: str) -> None:
    # Not fsspec's exists(), which returns False for every error.
    with suppress(FileNotFoundError):
        filesystem.info(path)
        raise FileExistsError(target)


def _publish_by_rename(filesystem: Any, path: str, data: bytes, *, overwrite: bool) -> None:
    parent, _, name = path.rpartition("/")
    temporary = f"{parent}/{temporary_name(name)}"
    filesystem.makedirs(parent, exist_ok=True)
    try:
        filesystem.pipe_file(temporary, data)
        if overwrite:
            _remove(filesystem, path)
        filesystem.mv(temporary, path)
        # WebHDFS raises no error if the target was created in the meantime.
        _require_missing(filesystem, temporary, path)
    finally:
        _remove(filesystem, temporary)


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.info(path)
        filesystem.rm_file(path)


def _takes_whole_objects(filesystem: Any) -> bool:
    from fsspec import AbstractFileSystem

    return bool(filesystem.async_impl) or type(filesystem).pipe_file is not AbstractFileSystem.pipe_file


def copy_file(source_filesystem: Any, source: str, target_filesystem: Any, target: str) -> None:
    """
    Copy a file; the filesystem decides if an existing target is replaced or retained.

    :raises FileNotFoundError: if the source is missing.
    :raises OSError: if the sizes of the copy and the source differ.
    """
    if _is_local(target_filesystem):
        _copy_to_local(source_filesystem, source, Path(target))
    elif source_filesystem is target_filesystem:
        target_filesystem.cp_file(source, target)
    else:
        _copy_to_remote(source_filesystem, source, target_filesystem, target)
    expected, found = source_filesystem.info(source)["size"], target_filesystem.info(target)["size"]
    if expected != found:
        raise OSError(f"copied {found} of {expected} bytes; the file changed while it was copied")


def _copy_to_local(source_filesystem: Any, source: str, target: Path) -> None:
    with publishing(target) as temporary:
        if _is_local(source_filesystem):
            with open_file(source_filesystem, source) as file, temporary.open("wb") as copy:
                shutil.copyfileobj(file, copy, _COPY_BYTES)
        else:
            source_filesystem.get_file(source, str(temporary))


def _copy_to_remote(source_filesystem: Any, source: str, target_filesystem: Any, target: str) -> None:
    if _is_local(source_filesystem):
        _require_file(Path(source).stat(), source)
        target_filesystem.put_file(source, target)
        return
    with tempfile.TemporaryDirectory() as scratch:
        local_copy = Path(scratch, "copy")
        source_filesystem.get_file(source, str(local_copy))
        target_filesystem.put_file(str(local_copy), target)


def _is_local(filesystem: Any) -> bool:
    return bool({"file", "local"} & _protocols(filesystem))


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)
