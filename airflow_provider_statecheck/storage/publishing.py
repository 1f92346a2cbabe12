"""
How a file is published whole or not at all on each kind of filesystem.

Local files go by way of a hidden sibling and a link. Object stores take the whole object in one call, with the condition
that the name is free where they know one. All others, such as HDFS, get a hidden sibling that is renamed: their own way
is a stream, and several publish the half file when a stream is left by an exception.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.storage import local_files
from airflow_provider_statecheck.storage.failures import is_unsupported

_WITH_CONDITION = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})


def create(filesystem: Any, path: str, data: bytes) -> None:
    """
    Publish a file under a name that is free.

    :raises FileExistsError: or another error for which ``is_taken`` holds, if the name is not free.
    """
    protocols = _protocols(filesystem)
    if protocols & {"file", "local"}:
        _require_free(filesystem, path)  # a repetition must not need space
        local_files.publish(Path(path), data, overwrite=False)
    elif protocols & _WITH_CONDITION:
        _create_with_condition(filesystem, path, data)
    else:
        _create_after_look(filesystem, path, data)


def replace(filesystem: Any, path: str, data: bytes) -> None:
    """Publish a file, whatever was under its name."""
    if _protocols(filesystem) & {"file", "local"}:
        local_files.publish(Path(path), data, overwrite=True)
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
