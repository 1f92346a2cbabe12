"""
Input of a step that is computed in parts.

It is the snapshot of an earlier step, a source of this package, or a DataFrame whose plan is one scan of files. All of
them become a source: it lists the input at the first try, compares it at each later one, and cuts it into parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedPlanError
from airflow_provider_statecheck.spark.costs.auto_snapshot import is_cached
from airflow_provider_statecheck.spark.driver.session import is_connect
from airflow_provider_statecheck.spark.fingerprints.code_digest import code_digest, is_constant
from airflow_provider_statecheck.spark.fingerprints.plan_digest import comparable
from airflow_provider_statecheck.spark.snapshots.live_snapshots import StageSnapshots
from airflow_provider_statecheck.spark.sources.file_source import FileSource
from airflow_provider_statecheck.spark.sources.parquet_source import ParquetSource
from airflow_provider_statecheck.spark.sources.snapshot_source import SnapshotSource
from airflow_provider_statecheck.spark.sources.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = ("parquet", "csv", "json", "orc", "text")
# The schema of the DataFrame replaces them.
_DROPPED_OPTIONS = frozenset({"path", "mergeschema", "inferschema"})
_NOT_IDENTIFYING = frozenset(
    {"_bytes", "_files", "_row_groups", "_is_auto", "_cuts", "_limits", "_readers", "_checkpoints", "_on_change"}
)
"""Attributes of sources that do not change which rows they read."""
_SECRET = frozenset({"_options", "_delta_options"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class PartInput:
    """Input of a step that is computed in parts."""

    source: Source
    fingerprint: str
    """Digest of the definition of the input; its files are compared by their listing."""
    frame: DataFrame | None = None
    """The whole input, if it is a DataFrame."""


def part_input(
    over: object, snapshots: StageSnapshots, fingerprint: Callable[[DataFrame], str], step: str
) -> PartInput:
    """
    Return the input of a step.

    :param over: The argument of ``checkpoint.snapshot``.
    :param snapshots: Live snapshots of the stage.
    :param fingerprint: Function that returns the fingerprint of a DataFrame.
    :param step: Name of the step, for messages.
    :raises InvalidConfigurationError: if it is neither a DataFrame nor a source.
    :raises UnsupportedPlanError: for a DataFrame that is neither a snapshot nor a scan of files.
    """
    from pyspark.sql import DataFrame

    if not isinstance(over, DataFrame):
        return PartInput(_source(over, step), _identity(over))
    stored = snapshots.read_by(over)
    source = _scan(over, step) if stored is None else SnapshotSource(snapshots.frames, stored)
    return PartInput(source, fingerprint(over), over)


def _source(over: object, step: str) -> Any:
    if isinstance(over, PathLike) or not callable(getattr(over, "open", None)):
        raise InvalidConfigurationError(
            f"Expected the input of step {step!r} to be a DataFrame or a source such as ParquetSource, found "
            f"{type(over).__name__}; pass a snapshot, spark.read.parquet(...) or a source as over."
        )
    return over


def _identity(source: object) -> str:
    left_out = _NOT_IDENTIFYING | _SECRET | ({"_address"} if "_shown" in vars(source) else set())
    texts = [f"{name}={_text(value)}" for name, value in sorted(vars(source).items()) if name not in left_out]
    text = "\n".join([type(source).__qualname__, *texts])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: object) -> str:
    if callable(value) and not isinstance(value, type):
        return code_digest(value)
    if is_constant(value):
        return repr(value)
    return _ADDRESS.sub("", repr(value))


def _scan(frame: DataFrame, step: str) -> FileSource:
    if is_cached(frame):
        raise _not_a_scan(step, "a cached DataFrame")
    found = _connect_scan(frame) if is_connect(frame) else _classic_scan(frame)
    if found is None:
        raise _not_a_scan(step, "another plan")
    if found.format not in _FORMATS:
        raise _not_a_scan(step, f"a scan of the format {found.format!r}")
    options = {name: value for name, value in found.options.items() if name.lower() not in _DROPPED_OPTIONS}
    if found.format == "parquet":
        return ParquetSource(found.paths, schema=frame.schema, options=options)
    return _ScannedFiles(found.format, found.paths, schema=frame.schema, options=options)


class _ScannedFiles(FileSource):
    """Files of a DataFrame in any format of Spark, each read as a whole."""

    def __init__(self, file_format: str, paths: list[str], *, schema: Any, options: Mapping[str, Any]) -> None:
        self._format = file_format
        super().__init__(paths, schema=schema, options=options)


def _not_a_scan(step: str, found: str) -> UnsupportedPlanError:
    return UnsupportedPlanError(
        f"Expected the input of step {step!r} to be a snapshot, a source, or a DataFrame that only reads files, such as "
        f"spark.read.parquet(...), found {found}; take a snapshot of it before, or move its operations into the function.",
        operation=found,
    )


@dataclass(frozen=True, slots=True)
class _FileScan:
    format: str
    paths: list[str]
    options: Mapping[str, str]


def _classic_scan(frame: Any) -> _FileScan | None:
    plan = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "LogicalRelation" or plan.catalogTable().isDefined() or plan.isStreaming():
        return None
    relation = plan.relation()
    is_files = relation.getClass().getSimpleName() == "HadoopFsRelation"
    # Table formats list their files by an index of their own.
    if not is_files or relation.location().getClass().getSimpleName() != "InMemoryFileIndex":
        return None
    roots = relation.location().rootPaths()
    paths = [comparable(roots.apply(i).toString()) for i in range(roots.size())]
    options = dict(_pairs(relation.options()))
    return _FileScan(str(relation.fileFormat().toString()).lower(), paths, options)


def _pairs(options: Any) -> Iterator[tuple[str, str]]:
    entries = options.toSeq()
    for i in range(entries.length()):
        yield entries.apply(i)._1(), entries.apply(i)._2()


def _connect_scan(frame: Any) -> _FileScan | None:
    relation = frame._plan.to_proto(frame.sparkSession.client).root
    read = relation.read
    if relation.WhichOneof("rel_type") != "read" or read.is_streaming or read.WhichOneof("read_type") != "data_source":
        return None
    scan = read.data_source
    if scan.predicates:
        return None
    return _FileScan(scan.format.lower() or _default_format(frame.sparkSession), list(scan.paths), dict(scan.options))


def _default_format(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.sources.default", "parquet")).lower()
