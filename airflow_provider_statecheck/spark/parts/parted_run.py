"""
A step computed in parts, in one attempt: its input, and what it resumes, computes and reports.

The progress of a step follows from its live parts: a part that is damaged or that no checkpoint references is computed
again.

The input is the snapshot of an earlier step, a source of this package, or a DataFrame whose plan is one scan of files.
All of them become a source: it lists the input at the first attempt, compares it at each later one, and cuts it into
parts. A snapshot does not change. If it was computed again, its files have other names, and what was
read of it is read again.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require_one_of
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceRestartRequiredError,
    UnsupportedPlanError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.auto_snapshots import is_cached
from airflow_provider_statecheck.spark.connectors.enumerator import (
    ItemEnumerator,
    ItemReader,
    ItemSplit,
    Limits,
    moved_pieces,
    state_after,
)
from airflow_provider_statecheck.spark.connectors.file_parts import RowGroups
from airflow_provider_statecheck.spark.connectors.files.listing import SourcePath, parse_paths
from airflow_provider_statecheck.spark.connectors.files.parquet_reader import ParquetReader
from airflow_provider_statecheck.spark.connectors.files.reader import FileReader
from airflow_provider_statecheck.spark.connectors.files.source import FileSource
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening
from airflow_provider_statecheck.spark.connectors.row_groups import CuttingReader, load_row_groups
from airflow_provider_statecheck.spark.connectors.source import OnChange, Source
from airflow_provider_statecheck.spark.fingerprint import code_digest, combined_fingerprint, is_constant
from airflow_provider_statecheck.spark.parts.part_jobs import PartBuilder, PartJobs, bad_text, failure_of
from airflow_provider_statecheck.spark.plan_digest import comparable, items
from airflow_provider_statecheck.spark.snapshots.columns import (
    file_schema,
    from_file_columns,
    from_transfer_columns,
    parse_schema,
    transfer_schema,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.spark.steps import StageSteps
from airflow_provider_statecheck.spark.tables.cutting import obstacle
from airflow_provider_statecheck.spark.versions import is_connect
from airflow_provider_statecheck.state.progress import PartedStep, StepKey, describe
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile, SnapshotWriter
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


log = logging.getLogger(__name__)


_FORMATS = ("parquet", "csv", "json", "orc", "text")
# The schema of the DataFrame replaces them.
_DROPPED_OPTIONS = frozenset({"path", "mergeschema", "inferschema"})
# Options that decide which directories have partition columns.
_BASE, _IS_RECURSIVE = "basepath", "recursivefilelookup"
_NOT_IDENTIFYING = frozenset(
    {"_bytes", "_files", "_row_groups", "_is_auto", "_cuts", "_limits", "_readers", "_checkpoints", "_on_change"}
)
"""Attributes of sources that do not change which rows they read."""
_SECRET = frozenset({"_options", "_delta_options"})
_STARS = re.compile(r"\*+")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class SnapshotSource(ItemSource):
    """
    The rows of a snapshot; it has no later runs, because a later run computes its snapshots again.

    :param parts: The snapshot, or its parts by their numbers.
    """

    def __init__(self, frames: StoredDataFrames, parts: Mapping[int, StoredSnapshot]) -> None:
        super().__init__(Limits(), OnChange.RESTART)
        self._frames = frames
        self._parts = parts

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        files = {
            f"{part}/{file.name}": _File(stored, file)
            for part, stored in self._parts.items()
            for file in stored.manifest.files
        }
        items = [Item.of(name, each.file.size_bytes, each.file.footer_sha256) for name, each in files.items()]
        return opening.reconciled(items, self._on_change), _SnapshotReader(opening.spark, self._frames, files)


@dataclass(frozen=True, slots=True)
class _File:
    stored: StoredSnapshot
    file: SnapshotFile

    @property
    def uri(self) -> str:
        return self.stored.uri_of(self.file)


class _SnapshotReader(CuttingReader):
    """
    Reads whole files like the snapshot itself, and row groups of large files through PyArrow.

    :param files: All files by the names of their items.
    """

    def __init__(self, spark: SparkSession, frames: StoredDataFrames, files: Mapping[str, _File]) -> None:
        super().__init__()
        self.spark = spark
        self._frames = frames
        self._files = files

    @override
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return self._frames.read_files(self.spark, _by_snapshot([self._files[split.item.name] for split in splits]))

    @override
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        # The parts of a snapshot have the same columns.
        first = next(each.stored for each in self._files.values() if each.uri == tasks[0].uri)
        stored, restored = _columns_of(first)
        return restored(load_row_groups(self.spark, tasks, stored, self._options_of(tasks[0].root)))

    @override
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        return RowGroups(*self._place_of(item), item.size_bytes, start, end, {})

    @override
    def _place_of(self, item: Item) -> tuple[str, str]:
        found = self._files[item.name]
        return found.stored.data_uri, found.uri

    @override
    def _options_of(self, root: str) -> Mapping[str, Any]:
        return self._frames.options_for(root)

    @override
    def _obstacle(self, item: Item, footer: Any) -> str | None:
        stored = self._files[item.name].stored
        # PyArrow reads what PyArrow has written, also as a whole.
        is_of_executors = stored.manifest.writer is SnapshotWriter.EXECUTORS
        return None if is_of_executors else obstacle(footer, _columns_of(stored)[0], self.rules)


def _columns_of(stored: StoredSnapshot) -> tuple[Any, Callable[[DataFrame], DataFrame]]:
    """Return the schema of the files, and a function that restores the columns of the DataFrame."""
    schema = parse_schema(stored.manifest.schema_json)
    if stored.manifest.writer is SnapshotWriter.EXECUTORS:
        return transfer_schema(schema), lambda frame: from_transfer_columns(frame, schema)
    return file_schema(schema), lambda frame: from_file_columns(frame, schema)


def _by_snapshot(files: Sequence[_File]) -> list[StoredSnapshot]:
    groups = groupby(sorted(files, key=lambda each: each.uri), key=lambda each: each.stored.uri)
    found = [list(group) for _, group in groups]
    return [
        StoredSnapshot(group[0].stored.uri, replace(group[0].stored.manifest, files=tuple(each.file for each in group)))
        for group in found
    ]


def _input(over: object, steps: StageSteps, step: str) -> tuple[Source, str]:
    """Return a step's input as a source, and a digest of its definition; its files are compared by their listing."""
    from pyspark.sql import DataFrame

    if isinstance(over, DataFrame):
        snapshots = steps.snapshots
        stored = snapshots.read_by(over)
        source = _scan(over, step) if stored is None else SnapshotSource(snapshots.frames, stored)
        return source, steps.fingerprint(over, None)
    given: Any = over
    if isinstance(given, PathLike) or not callable(getattr(given, "open", None)):
        raise InvalidConfigurationError(
            f"Expected the input of step {step!r} to be a DataFrame or a source such as ParquetSource, found "
            f"{type(over).__name__}; pass a snapshot, spark.read.parquet(...) or a source as over."
        )
    return given, _identity(over)


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
    return _ScannedFiles(found, frame.schema)


class _ScannedFiles(FileSource):
    """The files of a DataFrame in any format of Spark, with the partition columns that Spark has found."""

    def __init__(self, scan: _FileScan, schema: StructType) -> None:
        self._format = scan.format
        self._reader = ParquetReader if scan.format == "parquet" else FileReader
        given = {name.lower(): value for name, value in scan.options.items() if name.lower() not in _DROPPED_OPTIONS}
        base, is_recursive = given.pop(_BASE, None), given.pop(_IS_RECURSIVE, "false").lower() == "true"
        found = "" if is_recursive else base and _base_above(base, scan.paths)
        paths = [replace(path, base=found, is_expanded=True) for path in scan.paths]
        super().__init__(paths, schema=schema, options=given)


def _base_above(text: str, paths: Sequence[SourcePath]) -> str:
    """Return the option ``basePath`` of a scan as a URI, with the scheme and the host of its paths if it has none."""
    place = "/".join(paths[0].root.split("/")[:3])
    (base,) = parse_paths(f"{place}{text}" if text.startswith("/") else comparable(text))
    if base.pattern or not all(f"{path.root}/".startswith(f"{base.root}/") for path in paths):
        raise InvalidConfigurationError(
            f"Expected the option basePath to be a directory above all paths of the input, found {redact(text)!r}; "
            "correct it."
        )
    return base.root


def _not_a_scan(step: str, found: str) -> UnsupportedPlanError:
    return UnsupportedPlanError(
        f"Expected the input of step {step!r} to be a snapshot, a source, or a DataFrame that only reads files, such "
        f"as spark.read.parquet(...), found {found}; take a snapshot of it before, or move its operations into the "
        "function.",
        operation=found,
    )


@dataclass(frozen=True, slots=True)
class _FileScan:
    format: str
    paths: Sequence[SourcePath]
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
    # Spark has expanded the patterns of the user; brackets in what they matched are no patterns.
    paths = [SourcePath(comparable(root.toString())) for root in items(relation.location().rootPaths())]
    options = {each._1(): each._2() for each in items(relation.options().toSeq())}
    return _FileScan(str(relation.fileFormat().toString()).lower(), paths, options)


def _connect_scan(frame: Any) -> _FileScan | None:
    relation = frame._plan.to_proto(frame.sparkSession.client).root
    read = relation.read
    if relation.WhichOneof("rel_type") != "read" or read.is_streaming or read.WhichOneof("read_type") != "data_source":
        return None
    scan = read.data_source
    if scan.predicates:
        return None
    # Hadoop knows no pattern for any number of directories: two stars are one.
    paths = parse_paths([_STARS.sub("*", path) for path in scan.paths])
    return _FileScan(scan.format.lower() or _default_format(frame.sparkSession), paths, dict(scan.options))


def _default_format(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.sources.default", "parquet")).lower()


FAIL, QUARANTINE = "fail", "quarantine"


class PartedRun:
    """
    Execution of a step in one attempt; the arguments are those of ``checkpoint.snapshot``.

    :raises InvalidConfigurationError: for an invalid argument.
    :raises UnsupportedPlanError: for a DataFrame that is neither a snapshot nor a scan of files.
    """

    def __init__(
        self,
        steps: StageSteps,
        step: StepKey,
        build: Any,
        over: DataFrame | Source,
        *,
        version: str | None,
        on_bad_part: str,
    ) -> None:
        self._steps = steps
        self._snapshots = steps.snapshots
        self._step = step
        self._over = over
        self._source, digest = _input(over, steps, self._name)
        _require_function(build)
        require_one_of("on_bad_part", on_bad_part, (FAIL, QUARANTINE))
        self._build = build
        self._fails_at_once = on_bad_part == FAIL
        self._digest = combined_fingerprint(steps.fingerprint(build, version), digest, "over")

    def result(self) -> DataFrame:
        """Return the DataFrame of the step, read from the snapshots of its parts."""
        known = self._known()
        if known is not None and self._is_complete(known):
            self._steps.report_parts(self._step, is_restored=True, restored_parts=len(known.finished))
            return self._snapshots.read_parts(self._steps.spark, self._step)
        enumerator, start = self._open(known)
        with self._steps.working_on(self._step):
            jobs = self._compute(enumerator, start)
        self._finish(jobs, restored_parts=len(start.finished))
        return self._snapshots.read_parts(self._steps.spark, self._step)

    def _known(self) -> PartedStep | None:
        known = self._steps.parts.find(self._step)
        if known is None:
            return None
        if known.fingerprint != self._digest and self._steps.verifies_fingerprints:
            log.warning("Step %s has changed since its parts were computed; it is recomputed.", self._name)
            return None
        return known.limited_to(self._snapshots.parts(self._step).keys())

    def _is_complete(self, known: PartedStep) -> bool:
        parts = self._snapshots.parts(self._step)
        return bool(parts) and all(live.handle.of_parts == len(known.finished) for live in parts.values())

    def _open(self, known: PartedStep | None) -> tuple[ItemEnumerator, PartedStep]:
        if known is not None:
            try:
                return self._resume(known)
            except SourceRestartRequiredError as error:
                log.warning("Step %s is recomputed: %s", self._name, error)
        self._snapshots.drop(self._step)
        self._steps.iterations.forget(self._step)
        enumerator = self._open_source(None)
        return enumerator, PartedStep(fingerprint=self._digest, listed=enumerator.snapshot())

    def _resume(self, known: PartedStep) -> tuple[ItemEnumerator, PartedStep]:
        listed = {**known.listed, "increments": known.last_number}
        enumerator = self._open_source(state_after(listed, known.finished.values()))
        self._snapshots.keep_parts(self._step, known.finished.keys())
        if known.bad:
            log.info("Step %s runs again what failed before: %s", self._name, "; ".join(map(bad_text, known.bad)))
        start = replace(
            _as_listed(known, enumerator), fingerprint=self._digest, bad=(), share=enumerator.finished_share
        )
        self._steps.parts.record(self._step, start)
        self._steps.note_restored_parts(self._step)
        return enumerator, start

    def _open_source(self, restored: Mapping[str, Any] | None) -> ItemEnumerator:
        options = self._snapshots.storage.options
        enumerator = self._source.open(self._steps.spark, restored, storage_options=options)
        if not isinstance(enumerator, ItemEnumerator):
            found = type(self._source).__name__
            raise InvalidConfigurationError(
                f"Expected a source of this package as the input of step {self._name}, found {found}; read it "
                f"into a snapshot before, and pass that as over."
            )
        return enumerator

    def _compute(self, enumerator: ItemEnumerator, start: PartedStep) -> PartJobs:
        builder = PartBuilder(self._build, self._name, self._snapshots.parts(self._step).values())
        jobs = PartJobs(self._steps, self._step, enumerator, builder, start, fails_at_once=self._fails_at_once)
        jobs.run()
        if not jobs.parted.finished and not jobs.parted.bad:
            self._write_empty(jobs)
        return jobs

    def _write_empty(self, jobs: PartJobs) -> None:
        from pyspark.sql import DataFrame

        if not isinstance(self._over, DataFrame):
            raise InvalidConfigurationError(
                f"Expected rows in the source of step {self._name}, found none; skip the step if there is nothing to "
                "read."
            )
        jobs.write_empty(self._over)

    def _finish(self, jobs: PartJobs, *, restored_parts: int) -> None:
        bad = jobs.parted.bad
        if not bad:
            self._snapshots.complete_parts(self._step)
        jobs.save(is_end=True)
        report = functools.partial(self._steps.report_parts, self._step, is_restored=False, bad=bad)
        report(restored_parts=restored_parts, write_seconds=jobs.write_seconds)
        if bad:
            # The cause names damaged files of the input, which the end of the attempt looks for.
            raise failure_of(self._name, bad, jobs.parted.share) from jobs.first_error
        jobs.progress.finished()

    @property
    def _name(self) -> str:
        return describe(self._step)


def _require_function(build: Any) -> None:
    if not callable(build) or hasattr(build, "write"):
        raise InvalidConfigurationError(
            f"Expected a function of one DataFrame for a step with over, found {type(build).__name__}; pass a function "
            f"such as lambda rows: rows.mapInPandas(...)."
        )


def _as_listed(known: PartedStep, enumerator: ItemEnumerator) -> PartedStep:
    """Return the progress for the listing of this attempt, which lacks what its source leaves out by its rules."""
    listed = state_after({**enumerator.snapshot(), "progress": _NO_PROGRESS}, ())
    if listed["listing"] == known.listed["listing"]:
        return replace(known, listed=listed)
    finished = {number: moved_pieces(pieces, known.listed, listed) for number, pieces in known.finished.items()}
    return replace(known, listed=listed, finished=finished)


_NO_PROGRESS: Mapping[str, Any] = {"finished": [], "partial": []}
