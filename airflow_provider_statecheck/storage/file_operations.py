"""
Listing, copying and publishing of files on every kind of filesystem.

Local files go by way of a hidden sibling and a link. Object stores take the whole object in one call, with the condition
that the name is free where they know one. All others, such as HDFS, get a hidden sibling that is renamed: their own way
is a stream, and several publish the half file when a stream is left by an exception.

Within one object store the server copies. Local files go by way of a hidden sibling and a link, as when they are written.
Between filesystems a temporary local file stands in the middle.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.storage.failures import is_missing_bucket, is_unsupported


def find(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    """
    Return what fsspec knows of each file below a directory by its path; nothing if the directory is missing.

    :raises Exception: of the client, if any part of it cannot be listed.
    """
    try:
        if _has_own_find(filesystem):
            found = dict(filesystem.find(root, detail=True))
        else:
            found = _walk(filesystem, root)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise
        return {}
    return {path: info for path, info in found.items() if info.get("type") != "directory" and path != root}


def delete_all(filesystem: Any, root: str) -> None:
    """
    Delete a directory with all that is in it; a missing one is success.

    :raises Exception: of the client, if any file is still there.
    """
    try:
        filesystem.rm(root, recursive=True)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise
    # s3fs says nothing of keys that a batch could not delete. One by one, each gives its reason.
    left = find(filesystem, root)
    for path in left:
        filesystem.rm_file(path)
    if left and find(filesystem, root):
        raise TimeoutError(f"files of {root} are still there after they were deleted")


def _has_own_find(filesystem: Any) -> bool:
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    kind = type(filesystem)
    if issubclass(kind, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find
    return kind.find is not AbstractFileSystem.find


def _walk(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
    # fsspec's own walk leaves out what it cannot list.
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
        return [
            entry
            for entry in filesystem.ls(directory, detail=True)
            if entry["name"].rstrip("/") != directory.rstrip("/")
        ]
    except FileNotFoundError:
        if directory == root:
            raise
        return []  # deleted in the meantime


def publish(path: Path, data: bytes, *, overwrite: bool) -> None:
    """
    Write a file by way of a hidden sibling, durable before it becomes visible.

    :raises FileExistsError: if the file is there and is not to be overwritten.
    """
    with _sibling(path) as temporary:
        _write_durably(temporary, data)
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
        sync(path.parent)


def make_new_directory(path: Path) -> None:
    """
    Make a directory that was not there, durably, with those that it lies in.

    :raises FileExistsError: if it is there.
    """
    make_directory(path.parent)
    path.mkdir()
    sync(path.parent)


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Give a hidden sibling to be written, which becomes the file, durably, when all went well; what was there is replaced."""
    with _sibling(path) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


@contextmanager
def _sibling(path: Path) -> Iterator[Path]:
    make_directory(path.parent)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def list_files(directory: Path) -> dict[str, int]:
    """
    Return the size of each file below a directory by its relative path; nothing if it is missing.

    :raises OSError: if part of it cannot be read. fsspec would leave that part out, and files that cannot be read for a
        moment would be taken for lost.
    """
    found: dict[str, int] = {}
    for parent, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                found[path.relative_to(directory).as_posix()] = path.stat().st_size
    return found


def _raise_unless_missing(error: OSError) -> None:
    # Writers rename and delete their temporary directories while others list.
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def remove_empty_directories(directory: Path) -> None:
    """Remove a directory and those below it, as far as they hold no file."""
    for parent, _, _ in os.walk(directory, topdown=False):
        # The filesystem refuses to remove a directory that a writer has filled in the meantime.
        with suppress(OSError):
            Path(parent).rmdir()


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, so that they outlast a power failure."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # A durable file in a directory that a power failure takes away is not durable.
    for made in reversed(missing):
        sync(made.parent)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_WITH_CONDITION = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})


def create(filesystem: Any, path: str, data: bytes) -> None:
    """
    Publish a file under a name that is free.

    :raises FileExistsError: or another error for which ``is_taken`` holds, if the name is not free.
    """
    protocols = _protocols(filesystem)
    if protocols & {"file", "local"}:
        _require_free(filesystem, path)  # a repetition must not need space
        publish(Path(path), data, overwrite=False)
    elif protocols & _WITH_CONDITION:
        _create_with_condition(filesystem, path, data)
    else:
        _create_after_look(filesystem, path, data)


def replace(filesystem: Any, path: str, data: bytes) -> None:
    """Publish a file, whatever was under its name."""
    if _protocols(filesystem) & {"file", "local"}:
        publish(Path(path), data, overwrite=True)
    elif _takes_whole_objects(filesystem):
        filesystem.pipe_file(path, data)
    else:
        _publish_by_rename(filesystem, path, data, overwrite=True)


def _create_with_condition(filesystem: Any, path: str, data: bytes) -> None:
    try:
        filesystem.pipe_file(path, data, mode="create")
    except Exception as error:
        if not is_unsupported(error):
            raise
        _create_after_look(filesystem, path, data)


def _create_after_look(filesystem: Any, path: str, data: bytes) -> None:
    _require_free(filesystem, path)
    if _takes_whole_objects(filesystem):
        filesystem.pipe_file(path, data)
    else:
        _publish_by_rename(filesystem, path, data, overwrite=False)


def _require_free(filesystem: Any, path: str) -> None:
    # Not fsspec's exists(): that answers False whatever goes wrong.
    with suppress(FileNotFoundError):
        filesystem.info(path)
        raise FileExistsError(path)


def _publish_by_rename(filesystem: Any, path: str, data: bytes, *, overwrite: bool) -> None:
    parent, _, _ = path.rpartition("/")
    temporary = f"{parent}/.{uuid.uuid4().hex}.tmp"
    filesystem.makedirs(parent, exist_ok=True)
    try:
        filesystem.pipe_file(temporary, data)
        if overwrite:
            _remove(filesystem, path)
        filesystem.mv(temporary, path)
        _require_renamed(filesystem, temporary, path)
    finally:
        _remove(filesystem, temporary)


def _require_renamed(filesystem: Any, temporary: str, path: str) -> None:
    # WebHDFS does not say so where the name was taken in the meantime.
    with suppress(FileNotFoundError):
        filesystem.info(temporary)
        raise FileExistsError(path)


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.info(path)
        filesystem.rm_file(path)


def _takes_whole_objects(filesystem: Any) -> bool:
    from fsspec import AbstractFileSystem

    return bool(filesystem.async_impl) or type(filesystem).pipe_file is not AbstractFileSystem.pipe_file


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def copy_file(source_filesystem: Any, source: str, target_filesystem: Any, target: str) -> None:
    """
    Copy a file; one of this name that is there already may be replaced or kept, whichever the filesystem does.

    :raises FileNotFoundError: if the source is missing.
    :raises OSError: if the copy has another size than the source.
    """
    if _is_local(target_filesystem):
        _copy_to_local(source_filesystem, source, Path(target))
    elif source_filesystem is target_filesystem:
        target_filesystem.cp_file(source, target)
    else:
        _copy_by_way_of_a_file(source_filesystem, source, target_filesystem, target)
    _require_equal_sizes(source_filesystem, source, target_filesystem, target)


def _copy_to_local(source_filesystem: Any, source: str, target: Path) -> None:
    with publishing(target) as temporary:
        if _is_local(source_filesystem):
            shutil.copyfile(source, temporary)
        else:
            source_filesystem.get_file(source, str(temporary))


def _copy_by_way_of_a_file(source_filesystem: Any, source: str, target_filesystem: Any, target: str) -> None:
    if _is_local(source_filesystem):
        target_filesystem.put_file(source, target)
        return
    with tempfile.TemporaryDirectory() as scratch:
        passing = Path(scratch, "passing")
        source_filesystem.get_file(source, str(passing))
        target_filesystem.put_file(str(passing), target)


def _require_equal_sizes(source_filesystem: Any, source: str, target_filesystem: Any, target: str) -> None:
    expected, found = source_filesystem.info(source)["size"], target_filesystem.info(target)["size"]
    if expected != found:
        raise OSError(f"copied {found} of {expected} bytes; the file changed while it was copied")


def _is_local(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return bool({"file", "local"} & ({protocol} if isinstance(protocol, str) else set(protocol)))
