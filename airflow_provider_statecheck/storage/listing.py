"""Listing and deleting below a directory on any fsspec filesystem, completely or with an error."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.storage.failures import is_missing_bucket


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
