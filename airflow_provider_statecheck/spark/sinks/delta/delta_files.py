"""Data files of a Delta sink: their names, their committables, and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError
from airflow_provider_statecheck.spark.sinks.sink import TaskCommittable, decode_file
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, lineage_directory, missing_file_cause
from airflow_provider_statecheck.spark.tables.delta import DeltaFile, DeltaSnapshot
from airflow_provider_statecheck.storage.file_operations import in_parallel

_DATA_FILE = re.compile(r"statecheck-([0-9a-f]{12})/(?:.*/)?g(\d+)-e(\d+)-\d+-[0-9a-f]{32}\.parquet", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommittable(TaskCommittable):
    """Data files of one task."""

    KIND: ClassVar[str] = "a committable of a Delta sink"

    schema: str
    """Encoded Arrow schema with the partition columns."""
    files: tuple[DeltaFile, ...]

    @property
    @override
    def has_output(self) -> bool:
        return bool(self.files)

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        files = tuple(decode_file(DeltaFile, file) for file in document["files"])
        return {"schema": str(document["schema"]), "files": files}


class DeltaFiles(TargetFiles):
    """Data files, records and logs of a lineage in a table; never changes the transaction log of the table."""

    __slots__ = ()

    @override
    def _require_own(self, name: str) -> None:
        is_plain = not {"", ".", ".."} & set(name.split("/"))
        is_own = name.startswith(f"{lineage_directory(self.lineage)}/") or lineage_of_data_file(name) == self.lineage
        if not is_plain or not is_own:
            raise CoordinatorError(
                f"Expected a file of lineage {self.lineage} in the table {self.target}, found {name!r}; no file was changed."
            )


def application(lineage: str) -> str:
    """Return the application id whose version is that of the commit log of a lineage."""
    return f"statecheck-{lineage}"


def data_directory(lineage: str) -> str:
    """
    Return the directory of the data files of a lineage.

    The directory is not hidden because Delta readers ignore hidden directories.
    """
    return f"statecheck-{lineage}"


def data_file(lineage: str, directory: str, generation: int, epoch: int, subtask: int, key: str) -> str:
    """
    Return the permanent name of a data file.

    :param directory: Partition directory of the rows.
    :param key: Unique key of 32 hex characters.
    """
    name = f"g{generation}-e{epoch}-{subtask}-{key}.parquet"
    return "/".join(part for part in (data_directory(lineage), directory, name) if part)


def lineage_of_data_file(name: str) -> str | None:
    """Return the lineage of a data file, ``None`` for files of other writers."""
    match = _DATA_FILE.fullmatch(name)
    return match.group(1) if match else None


def writer_of_data_file(name: str) -> tuple[int, int]:
    """Return the generation and the epoch of the attempt that wrote a data file, zeros for files of other writers."""
    match = _DATA_FILE.fullmatch(name)
    return (int(match.group(2)), int(match.group(3))) if match else (0, 0)


def require_files_exist(files: DeltaFiles, checkpoint_id: int, wanted: Sequence[DeltaFile]) -> None:
    """
    Require that files are complete before a version of the table refers to them.

    :raises CorruptStateError: if a file is missing or was modified.
    """
    sizes = in_parallel(lambda file: files.size(file.name), wanted, is_local=files.is_local)
    wrong = [(file, size) for file, size in zip(wanted, sizes, strict=True) if size != file.size_bytes]
    if wrong:
        file, size = wrong[0]
        found = f"{size} bytes; the file was modified. Restore from an earlier checkpoint, or start over."
        if size is None:
            found = f"no file; {missing_file_cause(files.is_local)}"
            if lineage_of_data_file(file.name) is not None:
                found += " VACUUM deletes files that wait longer than its retention for their commit."
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of checkpoint {checkpoint_id} in {files.target}/{file.name}, found {found}",
            checkpoint_id=checkpoint_id,
        )


def own_files(snapshot: DeltaSnapshot) -> frozenset[str]:
    """Return the data files in the table that sinks of this package wrote."""
    # Only the tail is compared, because the URI of the table has several spellings.
    tails = (uri[uri.rfind("/statecheck-") + 1 :] for uri in snapshot.file_uris)
    return frozenset(tail for tail in tails if lineage_of_data_file(tail) is not None)
