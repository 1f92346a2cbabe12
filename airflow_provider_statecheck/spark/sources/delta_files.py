"""Data files of a Delta table: which to read, and reading them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.delta.delta_table import Action, DeltaLog, DeltaSnapshot, LogEntry
from airflow_provider_statecheck.spark.sinks.ledger import in_parallel
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.file_listing import NULL, FileListing, SourcePath, partition_of
from airflow_provider_statecheck.spark.sources.file_source import FileFormat, FileReader
from airflow_provider_statecheck.spark.sources.source_changes import Changes, OnChange, require_unchanged
from airflow_provider_statecheck.spark.sources.source_columns import chosen, named
from airflow_provider_statecheck.spark.sources.splits import Item
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""Those that ask nothing of a reader unless the table also makes use of them, which is looked at by itself."""

_ZONE = re.compile(r"(Z|[+-]\d{2}:\d{2})$")

# Versions whose files are read, and held, at a time.
_AT_ONCE = 64

Values = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table."""

    path: str
    """Relative to the table."""
    size_bytes: int
    values: Values
    """Of the columns of partitions, in their order."""

    @property
    def item(self) -> Item:
        """Return it as an item, whose name tells the values too, because the log may be gone when they are needed."""
        told = "/".join(
            f"{quote(n, safe='')}={NULL if v is None else quote(v, safe='')}" for n, v in self.values.items()
        )
        return Item.of(f"{self.path}#{told}", self.size_bytes, "")

    @classmethod
    def of(cls, item: Item) -> DataFile:
        """Return what an item tells."""
        path, _, told = item.name.rpartition("#")
        return cls(path, item.size_bytes, partition_of("", f"{told}/"))


@dataclass(slots=True)
class Additions:
    """What versions of a table added, and which of them did more than that."""

    files: dict[str, DataFile] = field(default_factory=dict)
    changing: list[int] = field(default_factory=list)
    """Versions that removed or changed rows of earlier ones; what they added is left out."""
    missing: int | None = None
    """The first version that is not kept any more."""


def files_of(snapshot: DeltaSnapshot, shown: str) -> tuple[DataFile, ...]:
    """
    Return the files of a table at a version, the oldest first.

    :raises UnsupportedStateError: if Parquet files alone do not tell the rows.
    """
    import pyarrow as pa

    require_plain_files(snapshot, shown)
    actions = pa.table(snapshot.handle.get_add_actions())
    columns = snapshot.partition_by
    values = _texts(actions.column("partition"), columns) if columns else [{}] * actions.num_rows
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    times = actions.column("modification_time").to_pylist()
    found = [DataFile(_local(unquote(p), shown), s, v) for p, s, v in zip(paths, sizes, values, strict=True)]
    # The names of files are random, and who reads them in increments expects what was written first to come first.
    oldest_first = sorted(zip(times, found, strict=True), key=lambda each: (each[0], each[1].path))
    return tuple(file for _, file in oldest_first if file.size_bytes)


def additions(log: DeltaLog, first: int, snapshot: DeltaSnapshot, shown: str) -> Additions:
    """
    Return what versions added, from the first to that of a snapshot.

    :raises UnsupportedStateError: if Parquet files alone do not tell the rows.
    """
    found = Additions()
    last, columns = snapshot.version, _partition_columns(snapshot)
    for start in range(first, last + 1, _AT_ONCE):
        versions = range(start, min(start + _AT_ONCE, last + 1))
        entries = in_parallel(log.entry, versions, is_local=log.storage.is_local)
        for version, entry in zip(versions, entries, strict=True):
            if entry is None:
                found.missing = version
                return found
            _take(found, entry, columns, shown)
    return found


def require_plain_files(snapshot: DeltaSnapshot, shown: str) -> None:
    """
    Refuse a table whose rows are not simply those of its files.

    :raises UnsupportedStateError: Says why.
    """
    features = snapshot.handle.protocol().reader_features or ()
    rules = [f"the table feature {name}" for name in features if name not in _READER_FEATURES]
    if snapshot.handle.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        rules.append("column mapping")
    if '"variant"' in snapshot.handle.schema().to_json():
        rules.append("columns of type variant")
    if "deletionVectors" in features and _has_deletion_vectors(snapshot):
        rules.append("deletion vectors")
    if rules:
        raise _not_plain(shown, ", ".join(rules))


def _take(found: Additions, entry: LogEntry, columns: Mapping[str, bool], shown: str) -> None:
    added = {path: action for path, action in entry.added.items() if action.get("dataChange", True)}
    removed = {path for path, action in entry.removed.items() if action.get("dataChange", True)}
    if removed - set(found.files):
        found.changing.append(entry.version)
        return
    for path in removed:
        del found.files[path]
    found.files.update(sorted(_files(added, columns, shown)))


def _files(added: Mapping[str, Action], columns: Mapping[str, bool], shown: str) -> Iterator[tuple[str, DataFile]]:
    for path, action in added.items():
        if action.get("deletionVector"):
            raise _not_plain(shown, "deletion vectors")
        told = action["partitionValues"]
        values = {name: _with_zone(told.get(name) or None, is_instant=it_is) for name, it_is in columns.items()}
        if int(action["size"]):
            yield path, DataFile(_local(path, shown), int(action["size"]), values)


def _partition_columns(snapshot: DeltaSnapshot) -> dict[str, bool]:
    """Return those of partitions, each with whether its values are instants."""
    import pyarrow as pa

    kinds = {name: snapshot.schema.field(name).type for name in snapshot.partition_by}
    return {name: bool(pa.types.is_timestamp(kind) and kind.tz) for name, kind in kinds.items()}


def _with_zone(text: str | None, *, is_instant: bool) -> str | None:
    # As deltalake reads them, of which a first run has its values; Spark would take the zone of the session.
    return f"{text}Z" if text and is_instant and not _ZONE.search(text) else text


def _has_deletion_vectors(snapshot: DeltaSnapshot) -> bool:
    import pyarrow as pa

    return bool(pa.table(snapshot.handle.deletion_vectors()).num_rows)


def _texts(partitions: Any, columns: tuple[str, ...]) -> list[dict[str, str | None]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = {name: pc.struct_field(partitions, name).cast(pa.string()).to_pylist() for name in columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*texts.values(), strict=True)]


def _local(path: str, shown: str) -> str:
    if "://" in path or path.startswith("/"):
        raise _not_plain(shown, f"a file of another table, {redact(path)}, as shallow clones have")
    return path


def _not_plain(shown: str, found: str) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected the rows of the Delta table {shown} to be those of its Parquet files, found {found}; rewrite the table "
        "without that (REORG TABLE ... APPLY (PURGE) removes deletion vectors), or read a copy of it."
    )


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a table was listed, and what it was like there."""

    version: int
    table_id: str
    schema: str
    """As the log has it, which is as Spark writes it."""
    partition_by: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "version": self.version,
            "table_id": self.table_id,
            "schema": self.schema,
            "partition_by": list(self.partition_by),
        }

    @classmethod
    def decode(cls, document: Mapping[str, Any] | None) -> Position:
        """
        Return what was encoded.

        :raises CorruptStateError: if it is something else.
        """
        found = document or {}
        try:
            columns = tuple(str(name) for name in found["partition_by"])
            return cls(int(found["version"]), str(found["table_id"]), str(found["schema"]), columns)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                "Expected the state of a Delta source, found that of another kind; read it by the source that wrote it, or "
                "start over."
            ) from error


class DeltaReader(FileReader):
    """
    Reads whole files.

    :param spark: The session.
    :param storage: The table.
    :param position: What the table is like.
    :param columns: Which columns to read; all by default.
    :param on_change: What to do if a file is gone.
    """

    def __init__(
        self,
        spark: SparkSession,
        storage: CheckpointStorage,
        position: Position,
        *,
        columns: tuple[str, ...] | None,
        on_change: OnChange,
    ) -> None:
        listing = FileListing((SourcePath(storage.base_uri),), storage.options)
        super().__init__(
            spark, FileFormat(name="parquet", options={}, columns=columns), listing, (), on_change=on_change
        )
        self._storage = storage
        self._position = position
        self._on_gone = on_change

    @functools.cached_property
    @override
    def schema(self) -> StructType:
        """The columns of the table, in their order."""
        from pyspark.sql.types import StructField, StructType

        fields = parse_schema(self._position.schema).fields
        return StructType([StructField(field.name, field.dataType) for field in fields])

    @override
    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read in the same way."""
        return self._position.encode()

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        """
        Look whether files are still there; one that is there never changes.

        :raises SourceChangedError: if one is gone.
        """
        files = [DataFile.of(item) for item in items]
        there = in_parallel(self._is_there, files, is_local=self._storage.is_local)
        gone = [Item.of(f.path, f.size_bytes, "") for f, is_there in zip(files, there, strict=True) if not is_there]
        require_unchanged(Changes(vanished=tuple(gone)), self._on_gone)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        laid_out: dict[str, list[str]] = {}
        told: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in (DataFile.of(split.item) for split in splits if split.item):
            root = _root_of(file)
            if root is None:
                told.setdefault(tuple(file.values.items()), []).append(self._uri(file.path))
            else:
                laid_out.setdefault(self._uri(root), []).append(self._uri(file.path))
        frames = [self._whole_files(root, uris) for root, uris in laid_out.items()]
        frames += [self._with_values(dict(values), uris) for values, uris in told.items()]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def _with_values(self, values: Mapping[str, str | None], uris: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions
        from pyspark.sql.types import StructType

        plain = StructType([field for field in self.schema.fields if field.name not in values])
        frame = self._read(self._storage.base_uri, uris, plain)
        return frame.select(
            [
                functions.lit(values[field.name]).cast(field.dataType).alias(field.name)
                if field.name in values
                else named(field.name)
                for field in chosen(self.schema, self.format.columns).fields
            ]
        )

    def _is_there(self, file: DataFile) -> bool:
        return self._storage.exists(self._uri(file.path))

    def _uri(self, path: str) -> str:
        return f"{self._storage.base_uri}/{path}" if path else self._storage.base_uri


def _root_of(file: DataFile) -> str | None:
    # Spark takes the values from the names of directories where they stand there, thousands of partitions at once.
    directories = file.path.split("/")[:-1]
    count = len(file.values)
    if len(directories) < count or (count and partition_of("", "/".join([*directories[-count:], ""])) != file.values):
        return None
    root = directories[: len(directories) - count]
    if any("=" in part for part in root):
        return None
    return "/".join(root) if count else ""
