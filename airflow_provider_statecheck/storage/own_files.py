"""
Deletion of local files below a directory, without following symbolic links.

Maintenance may delete files of all jobs, and every job may be able to write to its own directory. A link there could
lead into the directory of another job. Each directory on the way to a file is therefore opened relative to the one
before, which also holds if a directory is replaced by a link in the meantime.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.file_operations import ignoring_missing

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_TRIES = 100
"""Number of times to delete a directory whose files others delete at the same time."""


@dataclass(frozen=True, slots=True)
class OwnDirectory:
    """
    A directory that may be deleted from.

    A link to it is followed if the user chose its path, or if it leads to a directory of the same name, such as that of
    a job which was moved to another disk. Any other link may lead to the directory of another job.
    """

    path: Path
    is_chosen: bool = False

    @contextmanager
    def opened(self) -> Iterator[int]:
        """
        Yield the open directory.

        :raises InvalidConfigurationError: if it is a link to a directory of another name.
        """
        descriptor = os.open(self.real_path(), _DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def real_path(self) -> Path:
        """
        Return the path without links.

        :raises InvalidConfigurationError: if it is a link to a directory of another name.
        """
        real = Path(os.path.realpath(self.path))
        if not self.is_chosen and real.name != self.path.name:
            raise _is_link(self.path)
        return real


def delete_file(root: OwnDirectory, path: Path) -> None:
    """
    Delete a file below a directory; a missing file is success, and a link is deleted without its target.

    :raises InvalidConfigurationError: if a symbolic link leads to the file.
    """
    with ignoring_missing(), _parent_of(root, path) as parent:
        os.unlink(path.name, dir_fd=parent)


def delete_directory(root: OwnDirectory, path: Path) -> None:
    """
    Delete a directory recursively; a missing directory is success, and links are deleted without their targets.

    :raises InvalidConfigurationError: if a symbolic link leads to the directory.
    """
    with ignoring_missing(), _parent_of(root, path) as parent:
        for _ in range(_MOST_TRIES):
            if not _is_directory(path.name, parent):
                os.unlink(path.name, dir_fd=parent)
                return
            with ignoring_missing():
                # It opens each directory relative to its parent, like this module.
                shutil.rmtree(path.name, dir_fd=parent)
        raise TimeoutError(f"files in {path} are still listed after they were deleted")


def remove_empty_directories(root: OwnDirectory) -> None:
    """
    Remove a directory and its subdirectories unless they contain files.

    :raises InvalidConfigurationError: if the directory is a link to one of another name.
    """
    for parent, _, _ in os.walk(root.real_path(), topdown=False):
        # rmdir fails if a writer has created a file in the meantime.
        with suppress(OSError):
            Path(parent).rmdir()


def require_own(root: OwnDirectory, path: Path) -> None:
    """
    Require that no symbolic link leads to a file.

    :raises InvalidConfigurationError: One does.
    """
    with ignoring_missing(), _parent_of(root, path):
        pass


@contextmanager
def _parent_of(root: OwnDirectory, path: Path) -> Iterator[int]:
    """Yield the open directory of a file."""
    at = root.path.parent if path == root.path else root.path
    with ExitStack() as opened:
        descriptor = opened.enter_context(OwnDirectory(at, is_chosen=root.is_chosen or path == root.path).opened())
        for name in path.relative_to(at).parts[:-1]:
            at /= name
            descriptor = _opened(at, descriptor)
            opened.callback(os.close, descriptor)
        yield descriptor


def _opened(path: Path, parent: int) -> int:
    try:
        return os.open(path.name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise _is_link(path) from None
        raise


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _is_link(path: Path) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected only directories of one job to delete from, found the symbolic link {path}, which may lead to files "
        "of another; nothing was deleted. Remove the link, or replace it by the directory."
    )
