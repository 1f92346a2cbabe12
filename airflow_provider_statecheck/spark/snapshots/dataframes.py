"""
DataFrames in checkpoint storage, written and read by Spark or by Python on its executors.

Spark's Parquet writer is faster and is used if Spark's Hadoop has the filesystem. Otherwise Python writes on the
executors through fsspec, like the other files of a checkpoint. A snapshot is read in the way it was written.

A restored DataFrame equals the written one, except for nullability and the order of rows, and its plan starts at the
files.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY
from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.snapshots.columns import (
    contains_timestamp,
    file_schema,
    from_file_columns,
    from_transfer_columns,
    parse_schema,
    refuse_unsupported,
    stored_schema,
    to_file_columns,
    to_transfer_columns,
    transfer_schema,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import (
    HANDLES,
    ExecutorFiles,
    HiddenOptions,
    PartitionWriter,
    SnapshotReader,
    plan_tasks,
    read_snapshot,
)
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, pack_tasks, union_all
from airflow_provider_statecheck.spark.versions import is_connect, schema_of
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import (
    SnapshotFile,
    SnapshotManifest,
    SnapshotWriter,
    build_manifest,
)
from airflow_provider_statecheck.storage.uris import EXTRAS, open_filesystem, redact, scheme_of, serves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"

VERIFIED_PAGES = {
    "parquet.page.verify-checksum.enabled": "true",
    # Parquet does not verify dictionaries and indexes that it filters by: a changed byte could silently drop rows.
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}
"""Options of Spark's reader that make a changed byte in a page an error instead of a wrong value."""

# These options override the session's configuration.
_WRITE_OPTIONS = {"parquet.page.write-checksum.enabled": "true"}
# A restore must neither ignore damage nor merge schemas.
_READ_OPTIONS = {
    **VERIFIED_PAGES,
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "recursiveFileLookup": "false",
}

# With a single slash, because Hadoop writes file:/x.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
# Hadoop's name for s3 is s3a, except for distributions with their own s3 filesystem.
_OTHER_NAMES = {"s3": "s3a"}
_NO_FILESYSTEM = re.compile(
    r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException|NoClassDefFoundError"
)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot on storage, or the part of it with the files of its manifest."""

    uri: str
    manifest: SnapshotManifest

    @property
    def data_uri(self) -> str:
        """The URI of the directory of the Parquet files."""
        return f"{self.uri}/{DATA_DIRECTORY}"

    def uri_of(self, file: SnapshotFile) -> str:
        """Return the URI of a file."""
        return f"{self.data_uri}/{file.name}"

    def file_in(self, text: str) -> SnapshotFile | None:
        """Return the file that a text refers to, ``None`` if there is none."""
        # The name of the directory is unique. The path before it may differ, because Hadoop has other URI schemes.
        directory = f"{last_part(self.uri)}/{DATA_DIRECTORY}/"
        if directory not in text:
            return None
        return next((file for file in self.manifest.files if f"{directory}{file.name}" in text), None)


def last_part(uri: str) -> str:
    """Return the last segment of a URI."""
    return uri.rpartition("/")[2]


class StoredDataFrames:
    """
    Reader and writer of DataFrames in a checkpoint storage.

    :param storage: Checkpoint storage; its options are sent to executors only inside pickled functions.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._filesystems = HadoopFilesystems()

    def write(self, df: DataFrame, data_uri: str) -> SnapshotManifest:
        """
        Compute a DataFrame, write it to a new directory and return its manifest.

        :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
        :raises EnvironmentNotReadyError: if the executors lack a package.
        """
        spark_uri = self._filesystems.spark_uri(df.sparkSession, data_uri)
        if spark_uri is None:
            return self.write_on_executors(df, data_uri)
        write_dataframe(df, spark_uri)
        return build_manifest(self._storage, data_uri, df.schema.json())

    def write_on_executors(self, df: DataFrame, data_uri: str) -> SnapshotManifest:
        """Write as :meth:`write` where Spark has no filesystem for the directory: with fsspec, on the executors."""
        refuse_unwritable(df)
        schema = stored_schema(arrow_schema(transfer_schema(df.schema)))
        writer = PartitionWriter(self._files(data_uri), schema, uuid.uuid4().hex)
        task = _named(functools.partial(writer.write), f"write {redact(data_uri)}")
        with explained(data_uri):
            handles = to_transfer_columns(df).mapInArrow(task, HANDLES).collect()
        files = [SnapshotFile(name=h.name, size_bytes=h.size_bytes, footer_sha256=h.footer_sha256) for h in handles]
        return SnapshotManifest(
            schema_json=df.schema.json(),
            files=tuple(sorted(files, key=lambda file: file.name)),
            rows=sum(handle.rows for handle in handles),
            writer=SnapshotWriter.EXECUTORS,
        )

    def read(self, spark: SparkSession, snapshots: Sequence[StoredSnapshot]) -> DataFrame:
        """
        Return a DataFrame that reads a snapshot, or the parts of a step, which have the same columns.

        :param snapshots: At least one.
        :raises CorruptStateError: if its schema cannot be read.
        :raises LocationNotAllowedError: for a directory outside the allowed locations.
        :raises UnsupportedStateError: if Spark wrote it and this session has no filesystem for it.
        """
        return self._read_by_writer(spark, snapshots, lambda each: [each.data_uri])

    def read_files(self, spark: SparkSession, snapshots: Sequence[StoredSnapshot]) -> DataFrame:
        """Return a DataFrame that reads only the files of the given manifests; raises as :meth:`read`."""
        return self._read_by_writer(spark, snapshots, lambda each: [each.uri_of(file) for file in each.manifest.files])

    def _read_by_writer(
        self, spark: SparkSession, snapshots: Sequence[StoredSnapshot], uris_of: Callable[[StoredSnapshot], list[str]]
    ) -> DataFrame:
        for each in snapshots:
            self._storage.allowed.require(each.data_uri)
        by_spark = [each for each in snapshots if each.manifest.writer is SnapshotWriter.SPARK]
        frames = []
        if by_spark:
            uris = [self._spark_uri(spark, uri) for each in by_spark for uri in uris_of(each)]
            frames.append(read_dataframe(spark, uris, by_spark[0].manifest.schema_json))
        others = [each for each in snapshots if each.manifest.writer is not SnapshotWriter.SPARK]
        frames += self._read_each_root(spark, others)
        return frames[0] if len(frames) == 1 else union_all(frames)

    def options_for(self, uri: str) -> dict[str, Any]:
        """Return the options of the filesystem of a location; none for another storage, which must not get them."""
        base, options = self._storage.base_uri, dict(self._storage.options)
        return options if serves(open_filesystem(base, options), base, uri) else {}

    def _spark_uri(self, spark: SparkSession, uri: str) -> str:
        spark_uri = self._filesystems.spark_uri(spark, uri)
        if spark_uri is None:
            raise UnsupportedStateError(
                f"Expected a Hadoop filesystem for the snapshot {redact(uri)}, which Spark has written, found none in "
                "this session; add the connector that wrote it to spark.jars.packages.",
                uri=redact(uri),
            )
        return spark_uri

    def _read_each_root(self, spark: SparkSession, snapshots: Sequence[StoredSnapshot]) -> Iterator[DataFrame]:
        # Parts of a step are in one directory, except for those that were restored from another job or directory.
        for root, group in groupby(sorted(snapshots, key=_root_of), key=_root_of):
            parts = list(group)
            files = [_below_root(each, file) for each in parts for file in each.manifest.files]
            manifest = replace(parts[0].manifest, files=tuple(files))
            yield self._read_on_executors(spark, self._files(root), redact(parts[0].data_uri), manifest)

    def _read_on_executors(
        self, spark: SparkSession, files: ExecutorFiles, name: str, manifest: SnapshotManifest
    ) -> DataFrame:
        schema = parse_schema(manifest.schema_json)
        transferred = transfer_schema(schema)
        tasks = plan_tasks(manifest.files, cores_of(spark))
        reader = SnapshotReader(files=files, schema=arrow_schema(transferred), packed_tasks=pack_tasks(tasks or [[]]))
        # The name of the function identifies the snapshot in a plan.
        task = _named(functools.partial(read_snapshot, reader), name)
        count = max(1, len(tasks))
        return from_transfer_columns(spark.range(0, count, 1, count).mapInArrow(task, transferred), schema)

    def _files(self, data_uri: str) -> ExecutorFiles:
        return ExecutorFiles(data_uri, HiddenOptions(self.options_for(data_uri)))


def _root_of(snapshot: StoredSnapshot) -> str:
    return snapshot.uri.rpartition("/")[0]


def _below_root(snapshot: StoredSnapshot, file: SnapshotFile) -> SnapshotFile:
    return file._replace(name=f"{last_part(snapshot.uri)}/{DATA_DIRECTORY}/{file.name}")


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


def refuse_unwritable(df: DataFrame) -> None:
    """
    Reject a DataFrame that cannot be restored unchanged.

    :raises UnsupportedStateError: for a streaming DataFrame, or a column of an unsupported type.
    """
    if df.isStreaming:
        raise UnsupportedStateError(
            "Expected a batch DataFrame for a snapshot, found a streaming one; read its source with spark.read."
        )
    refuse_unsupported(schema_of(df))


def write_dataframe(df: DataFrame, data_uri: str) -> None:
    """
    Compute a DataFrame and write it to a new directory with Spark's writer.

    :param data_uri: URI of the directory, which Spark and its executors can access.
    :raises UnsupportedStateError: for a DataFrame that cannot be restored unchanged.
    """
    refuse_unwritable(df)
    _refuse_lossy_settings(df)
    with _unchanged_days(df.sparkSession):
        to_file_columns(df).write.mode("error").options(**_WRITE_OPTIONS).parquet(data_uri)


def read_dataframe(spark: SparkSession, uris: Sequence[str], schema_json: str) -> DataFrame:
    """
    Return a DataFrame that was written by :func:`write_dataframe`, with its original names, types and metadata.

    :param uris: URIs of its directories, or of some of its files.
    :param schema_json: Schema of the DataFrame in its manifest.
    :raises CorruptStateError: if the schema cannot be read.
    """
    schema = parse_schema(schema_json)
    return from_file_columns(spark.read.schema(file_schema(schema)).options(**_READ_OPTIONS).parquet(*uris), schema)


_CALENDARS = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_CORRECTED = "CORRECTED"
_CALENDAR_LOCK = threading.Lock()


@contextmanager
def _unchanged_days(spark: SparkSession) -> Iterator[None]:
    """Let Spark write days and times as they are, and not in the Julian calendar, which lacks ten days of 1582."""
    with ExitStack() as stack:
        stack.enter_context(_CALENDAR_LOCK)
        before = {name: mode for name in _CALENDARS if (mode := str(spark.conf.get(name))).upper() != _CORRECTED}
        if not before:
            # Threads of other sessions write at the same time; Spark has no such option of a single write.
            stack.close()
        for name, mode in before.items():
            stack.callback(spark.conf.set, name, mode)
            spark.conf.set(name, _CORRECTED)
        yield


def _refuse_lossy_settings(df: DataFrame) -> None:
    if not contains_timestamp(df.schema):
        return
    if df.sparkSession.conf.get(_TIMESTAMP_TYPE) == "TIMESTAMP_MILLIS":
        raise UnsupportedStateError(
            f"Expected {_TIMESTAMP_TYPE} to keep the microseconds of timestamps, found TIMESTAMP_MILLIS; set it to "
            "TIMESTAMP_MICROS or INT96.",
            setting=_TIMESTAMP_TYPE,
        )


_PACKAGE = "airflow_provider_statecheck"
# Only packages that this provider needs on executors: other imports belong to the user's functions.
_ANYWHERE = ("fsspec", "numpy", "pyarrow")
_REQUIRED = (_PACKAGE, *_ANYWHERE, "s3fs", "gcsfs", "adlfs", "aiobotocore")
_MISSING = re.compile(
    rf"No module named '({'|'.join(_REQUIRED)})[.']|\b(pyarrow)\b[^\n]*must be installed", re.IGNORECASE
)


@contextmanager
def explained(data_uri: str) -> Iterator[None]:
    """
    Replace the error of a Spark job whose tasks lack a package.

    :param data_uri: URI of the directory that the tasks write to.
    :raises EnvironmentNotReadyError: if a package is missing on the executors.
    """
    try:
        yield
    except Exception as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        raise _missing_package((found.group(1) or found.group(2)).lower(), data_uri) from error


def _missing_package(name: str, data_uri: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected the package {name} in the Python of Spark's executors, to write to {redact(data_uri)}; found none. "
        f"{_advice(name, data_uri)}",
        package=name,
    )


def _advice(name: str, data_uri: str) -> str:
    if name == _PACKAGE:
        return "Install airflow-provider-statecheck there, or ship it with spark.submit.pyFiles."
    extra = EXTRAS.get(scheme_of(data_uri))
    if extra is None or name in _ANYWHERE:
        return f"Install it there: pip install {name}."
    return f"Install it there: pip install 'airflow-provider-statecheck[{extra}]'."


class HadoopFilesystems:
    """Hadoop filesystems of Spark sessions, looked up once for each session and scheme."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, dict[str, str | None]] = WeakKeyDictionary()

    def spark_uri(self, spark: Any, uri: str) -> str | None:
        """
        Return a URI for Spark's readers and writers, ``None`` if Spark's Hadoop has no filesystem for it.

        :raises InvalidConfigurationError: for a URI without a scheme.
        :raises UnsupportedStateError: for the memory filesystem, which is private to a process.
        """
        scheme = spark_scheme(uri)
        if scheme == "memory":
            raise UnsupportedStateError(
                f"Expected a storage that executors can access, found {redact(uri)} in the memory of this process; use "
                "file:// or a shared storage.",
                uri=redact(uri),
            )
        names = self._names.setdefault(spark, {})
        if scheme not in names:
            names[scheme] = _spark_name(spark, scheme)
        name = names[scheme]
        return None if name is None else f"{name}:{uri.partition(':')[2]}"


def spark_scheme(uri: str) -> str:
    """
    Return the scheme of a URI in lower case.

    :raises InvalidConfigurationError: if it has none.
    """
    found = _SCHEME.match(uri)
    if found is None:
        # Without a scheme, Spark would use its default filesystem, but fsspec the local disk.
        raise InvalidConfigurationError(
            f"Expected a checkpoint directory with a scheme, found {redact(uri)!r}; write file:///... for a local one.",
            uri=redact(uri),
        )
    return found.group(1).lower()


def same_place(uri: str) -> tuple[str, ...]:
    """Return the URIs by which a plan may refer to a location."""
    scheme, colon, rest = uri.partition(":")
    other = _OTHER_NAMES.get(scheme)
    return (uri,) if other is None else (uri, f"{other}{colon}{rest}")


def _spark_name(spark: Any, scheme: str) -> str | None:
    candidates = [scheme, *([_OTHER_NAMES[scheme]] if scheme in _OTHER_NAMES else [])]
    name = next((each for each in candidates if _has_filesystem(spark, each)), None)
    if name is None:
        log.info("Spark's Hadoop has no filesystem for %s://; executors write DataFrames to it through fsspec.", scheme)
    else:
        log.info("Spark writes DataFrames to %s:// through its Hadoop filesystem %s://.", scheme, name)
    return name


def _has_filesystem(spark: Any, scheme: str) -> bool:
    if is_connect(spark):
        return _server_has_filesystem(spark, scheme)
    from py4j.protocol import Py4JJavaError

    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        spark._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError:
        # No class is configured for the scheme, or it is not on the class path.
        return False
    return True


def _server_has_filesystem(spark: Any, scheme: str) -> bool:
    # A client cannot query the server's classes, but its analyzer opens the filesystem of a path. Without a host or
    # bucket, filesystems of object stores fail before they use the network.
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.schema("a int").parquet(f"{scheme}:///statecheck-probe").schema
    except PySparkException as error:
        return _NO_FILESYSTEM.search(str(error)) is None
    return True
