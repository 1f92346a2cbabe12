"""Files below the target of a sink, and the names that tell whose they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sinks.sink import SinkContext
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

LEDGER_DIRECTORY = "_statecheck"
"""Readers of Parquet directories pass over names with such a beginning."""
_LINEAGE_LENGTH = 12
_SHORT_LENGTH = 12
# Not .parquet: a glob such as **/*.parquet looks into hidden directories too.
_STAGED_SUFFIX = ".staged"
_STAGED = re.compile(r"(\d+)-[0-9a-f]{32}\.staged")
_FINAL = re.compile(r"part-([0-9a-f]{12})-g\d+-c\d+-\d+-[0-9a-f]{12}\.parquet")


def lineage_of(job_id: str, uid: str) -> str:
    """Return what names the files of one sink of one job, and of no other, in all attempts."""
    return hashlib.sha256(f"{job_id}/{uid}".encode()).hexdigest()[:_LINEAGE_LENGTH]


def lineage_directory(lineage: str) -> str:
    """Return where everything of a lineage lies but its published files."""
    return f"{LEDGER_DIRECTORY}/{lineage}"


def staging_directory(lineage: str) -> str:
    """Return where files wait for their commit."""
    return f"{lineage_directory(lineage)}/staging"


def staged_name(epoch: int, key: str) -> str:
    """
    Return the name of a file within the staging directory.

    :param key: 32 hex characters that nobody else uses.
    """
    return f"{epoch}-{key}{_STAGED_SUFFIX}"


def staged_epoch(name: str) -> int | None:
    """Return which attempt wrote a file of the staging directory, ``None`` for a name of another form."""
    match = _STAGED.fullmatch(name)
    return int(match.group(1)) if match else None


def final_name(lineage: str, generation: int, checkpoint_id: int, subtask: int, staged: str) -> str:
    """Return the name under which a staged file is published."""
    short = staged.removesuffix(_STAGED_SUFFIX).rpartition("-")[2][:_SHORT_LENGTH]
    return f"part-{lineage}-g{generation}-c{checkpoint_id}-{subtask}-{short}.parquet"


def lineage_of_file(path: str) -> str | None:
    """Return whose published file a path is, ``None`` if no sink of ours wrote it."""
    match = _FINAL.fullmatch(path.rpartition("/")[2])
    return match.group(1) if match else None


def is_hidden(path: str) -> bool:
    """Tell whether readers of a Parquet directory pass over a file."""
    # Spark reads a directory _a=1 as the partition it is.
    return any(part[:1] in "._" and "=" not in part for part in path.split("/"))


# Those on which a rename is one step of the server.
_RENAMING = frozenset({"hdfs", "arrow_hdfs", "webhdfs", "webHDFS", "viewfs"})


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """What one lineage may do below a target."""

    storage: CheckpointStorage
    lineage: str

    @classmethod
    def open(cls, target: str, lineage: str, options: Mapping[str, Any]) -> Self:
        """
        Open a target; nothing is created yet.

        :raises InvalidConfigurationError: for a URI that is none, or whose filesystem is not installed.
        """
        return cls(open_target(target, options), lineage)

    @property
    def target(self) -> str:
        """The target, fit to be shown."""
        return redact(self.storage.base_uri)

    @property
    def is_local(self) -> bool:
        """Tell whether the bytes are files of this machine."""
        return self.storage.is_local

    def local_path(self, name: str) -> Path:
        """Return where a file of a local target is, with the directory that it lies in made."""
        path = Path(self.storage.locate(self._uri(name))[1])
        file_operations.make_directory(path.parent)
        return path

    def list_files(self, directory: str = "") -> dict[str, int]:
        """Return the size of each file below a directory by its name relative to that; nothing if it is missing."""
        return self.storage.list_files(self._uri(directory))

    def read(self, name: str) -> bytes:
        """
        Return a whole file.

        :raises CheckpointNotFoundError: if it is missing.
        """
        return self.storage.read_bytes(self._uri(name))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return part of a file."""
        return self.storage.read_range(self._uri(name), start, end)

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, ``None`` if it is missing."""
        try:
            return self.storage.size(self._uri(name))
        except CheckpointNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Publish a small file, whatever was under its name."""
        self._require_ours(name)
        self.storage.write_bytes(self._uri(name), data, overwrite=True)

    def upload(self, local: Path, name: str) -> None:
        """Copy a finished local file; a stream that is left by an exception would publish half of it."""
        self._require_ours(name)
        ExecutorFiles(self.storage.base_uri, HiddenOptions(self.storage.options)).publish(local, name)

    def move(self, name: str, new_name: str) -> None:
        """
        Give a file another name: in one step where the filesystem can, else as a copy that is followed by a deletion.

        :raises CheckpointNotFoundError: if it is missing; it may have been moved by a call whose reply was lost.
        """
        self._require_ours(name)
        self._require_ours(new_name)
        if self.is_local:
            self.storage.call(self._uri(name), lambda _, path: _rename_local(Path(path), self.local_path(new_name)))
        elif _renames(self.storage._fs):
            self._rename(name, new_name)
        else:
            self.copy(name, new_name)
            self.delete(name)

    def copy(self, name: str, new_name: str) -> None:
        """
        Copy a file on the server.

        :raises CheckpointNotFoundError: if it is missing.
        """
        self._require_ours(new_name)
        new_path = self._path(new_name)
        self.storage.call(self._uri(name), lambda filesystem, path: filesystem.cp_file(path, new_path))

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is success."""
        self._require_ours(name)
        with suppress(CheckpointNotFoundError):
            self.storage.call(self._uri(name), lambda filesystem, path: filesystem.rm_file(path))

    def _rename(self, name: str, new_name: str) -> None:
        new_path = self._path(new_name)

        def rename(filesystem: Any, path: str) -> None:
            filesystem.makedirs(new_path.rpartition("/")[0], exist_ok=True)
            filesystem.info(path)  # says that it is missing, which renaming does not on every filesystem
            filesystem.mv(path, new_path)

        self.storage.call(self._uri(name), rename)

    def _require_ours(self, name: str) -> None:
        # No bug of ours may cost the files of others in the directory.
        parts = name.split("/")
        is_plain = not {"", ".", ".."} & set(parts)
        if not is_plain or not (
            name.startswith(f"{lineage_directory(self.lineage)}/") or lineage_of_file(name) == self.lineage
        ):
            raise CoordinatorError(
                f"Expected a file of lineage {self.lineage} below {self.target}, found {name!r}; nothing was changed."
            )

    def _uri(self, name: str) -> str:
        return f"{self.storage.base_uri}/{name}" if name else self.storage.base_uri

    def _path(self, name: str) -> str:
        return str(self.storage.locate(self._uri(name))[1])


Files = TypeVar("Files", bound=TargetFiles)


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """
    Where a sink writes, as the driver settled it once: pickled copies have it, whatever directory their processes run in.

    :param uri: The target as an absolute URI.
    :param lineage: Whose files the sink may change there.
    :param options: Options of the filesystem.
    """

    uri: str = field(repr=False)
    lineage: str
    options: HiddenOptions

    @classmethod
    def of(cls, target: str, context: SinkContext, given: HiddenOptions | None) -> Self:
        """
        Settle the target of an attempt; a relative path begins in the directory of this process.

        :param given: Options of the filesystem; ``None`` for those of the stage.
        :raises InvalidConfigurationError: for a URI that is none, or whose filesystem is not installed.
        """
        options = given or HiddenOptions(context.storage_options)
        uri = open_target(target, options.reveal()).base_uri
        return cls(uri, lineage_of(context.job_id, context.uid), options)

    def files(self, kind: type[Files]) -> Files:
        """Open the files of the target in any process."""
        return kind.open(self.uri, self.lineage, self.options.reveal())


def open_target(target: str, options: Mapping[str, Any]) -> CheckpointStorage:
    """
    Open the directory of a sink.

    :raises InvalidConfigurationError: for a URI that is none, or whose filesystem is not installed.
    """
    try:
        return CheckpointStorage.open(target, **options)
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(str(error).replace("checkpoint_dir", "the target of a sink")) from error


def why_gone(is_local: bool) -> str:
    """
    Return why a file that a task has written may be missing, and what to do, as the end of an error.

    :param is_local: Whether the file was to lie on a disk.
    """
    if not is_local:
        return "it was deleted. Restore from an earlier checkpoint, or start over."
    return (
        "it was deleted, or the executors of Spark wrote it to another disk than the one that the driver sees. If they run on "
        "other machines, choose a directory that all of them mount, or an object store, and start over; else restore from an "
        "earlier checkpoint, or start over."
    )


def _rename_local(path: Path, new_path: Path) -> None:
    path.replace(new_path)
    file_operations.sync(new_path.parent)


def _renames(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return bool(_RENAMING & ({protocol} if isinstance(protocol, str) else set(protocol)))
