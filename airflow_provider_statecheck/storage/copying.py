"""
How a file is copied whole or not at all, without passing through memory.

Within one object store the server copies. Local files go by way of a hidden sibling and a link, as when they are written.
Between filesystems a temporary local file stands in the middle.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.storage import local_files


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
    with local_files.publishing(target) as temporary:
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
