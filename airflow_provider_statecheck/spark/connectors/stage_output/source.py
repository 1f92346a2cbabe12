"""
The committed output of another stage as a source.

An item is the output of one checkpoint of the upstream stage; it is read whole, and once. A commit that the upstream
stage retracts by a restore from an earlier checkpoint is a change of the source.

The name of an item contains the lineage of its sink, which is another one in each job. A stage that continues the state
of another job remembers the lineages in that state, and their directories. If its source reads a directory without
them, because the upstream stage was restored there too, their finished commits count as read, and the others are read
in their directories.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit, parse_limits
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import Ancestry, CommitLog, within
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import ledger_storage, open_target
from airflow_provider_statecheck.spark.connectors.files.listing import FileListing, parse_paths
from airflow_provider_statecheck.spark.connectors.files.reader import FileFormat, FileReader
from airflow_provider_statecheck.spark.connectors.files.sink import CommittedFile, committed_files, logs_of_target
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.sink import decode_schema
from airflow_provider_statecheck.spark.connectors.source import (
    OnChange,
    change_error,
    compare,
    restart_or_rewind,
    some_of,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.schemas import merged_schema, spark_schema
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.stored_json import decoding
from airflow_provider_statecheck.storage.uris import path_text, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


log = logging.getLogger(__name__)

_TARGET = "target"
"""Key of the directory of the source in the state of a reader; empty for a URI with credentials."""
_INHERITED = "inherited"
"""Key of the lineages of other jobs in the state of a reader, with their directories."""


class StageOutputSource(ItemSource):
    """
    The committed output of a ``ParquetSink``; the output of each upstream checkpoint is read whole, and once.

    A run reads the commits that are valid at its start; the next run reads later commits.

    :param path: Directory of one or several sinks.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if ``checkpoints_per_increment`` is set. The output of a checkpoint is never cut.
    :param checkpoints_per_increment: Maximum number of upstream checkpoints in one Spark job.
    :param columns: Columns to read; all by default.
    :param on_change: Policy for output that the upstream stage retracted after it was read: ``"fail"``, ``"ignore"`` or
        ``"restart"``.
    :param storage_options: Options of the filesystem; by default those of the stage's checkpoint storage.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        bytes_per_increment: str | int | None = "auto",
        checkpoints_per_increment: int | None = None,
        columns: Sequence[str] | None = None,
        on_change: str = "fail",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        checkpoints = ("checkpoints_per_increment", checkpoints_per_increment)
        super().__init__(parse_limits(bytes_per_increment, checkpoints), on_change)
        self._path = path_text(path)
        self._columns = parse_columns(columns)
        self._options = hidden_options(storage_options)

    def __repr__(self) -> str:
        return f"StageOutputSource({redact(self._path)!r})"

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        # Resolved once: a relative path refers to the directory of this process.
        target = open_target(self._path, opening.options(self._options))
        commits = {commit.item.name: commit for commit in commits_in(target)}
        ledger, earlier = Ledger(tuple(commit.item for commit in commits.values())), EarlierOutput()
        if opening.before is not None:
            allowed = opening.allowed.around(target.base_uri)
            before, inherited = _with_unlisted(opening.before.ledger, opening, target, allowed)
            earlier = EarlierOutput.left_by(before, inherited, target, allowed)
            ledger = reconcile_commits(
                before,
                ledger.items,
                on_change=self._on_change,
                # The commits of the new upstream stage follow those of the other job, also within a run.
                new_run=opening.is_new_run or opening.is_of_other_job,
                left=earlier.left,
            )
        reader = StageOutputReader(
            opening.spark,
            target,
            commits,
            self._columns,
            self._on_change,
            opening.reader_state,
            earlier,
            is_new_run=opening.is_new_run,
        )
        reader.require_unchanged([commit.item for commit in earlier.commits.values()])
        return ledger, reader


@dataclass(frozen=True, slots=True)
class Commit:
    """The committed files of one checkpoint of a sink."""

    lineage: str
    checkpoint_id: int
    files: tuple[CommittedFile, ...]

    @property
    def item(self) -> Item:
        """The commit as an item; its version is the names of the files, which identify their content."""
        names = sorted(file.uri.rpartition("/")[2] for file in self.files)
        return Item.of(f"{self.lineage}/{self.checkpoint_id}", sum(file.size_bytes for file in self.files), names)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierOutput:
    """Output that another job has listed, whose state the stage has continued."""

    inherited: Mapping[str, str] = field(default_factory=dict)
    """Directories of the lineages in that state; empty for a URI with credentials."""
    left: AbstractSet[str] = frozenset()
    """Those lineages that the directory of the source does not have."""
    targets: tuple[CheckpointStorage, ...] = ()
    """Directories with commits of these lineages that are still to be read."""
    commits: Mapping[str, Commit] = field(default_factory=dict)
    """These commits, by the names of their items."""

    @classmethod
    def left_by(
        cls, ledger: Ledger, inherited: Mapping[str, str], target: CheckpointStorage, allowed: AllowedLocations
    ) -> Self:
        """
        Return the output that another job has listed, and find what is still to be read of it.

        :param ledger: Ledger in the state of that job, or of a later attempt or run of the stage.
        :param inherited: Directories of the lineages in the state of that job.
        :param target: Directory of the source.
        :param allowed: Locations that may be opened.
        :raises SourceChangedError: if a commit that is still to be read is not in its directory.
        :raises LocationNotAllowedError: if its directory is elsewhere.
        """
        if not inherited:
            return cls()
        here = logs_of_target(target).keys()
        # A directory that was moved is that of the source until its output is read.
        inherited = {lineage: _storable(target) if lineage in here else uri for lineage, uri in inherited.items()}
        left = inherited.keys() - here
        unread = [item for item in ledger.unfinished if _lineage_in(item) in left]
        uris = sorted({inherited[_lineage_in(item)] for item in unread} - {""})
        for uri in uris:
            allowed.require(uri)
        targets = tuple(open_target(uri, target.options) for uri in uris)
        found = {commit.item.name: commit for each in targets for commit in _committed(each)}
        lost = [item.name for item in unread if item.name not in found or found[item.name].item != item]
        if lost:
            raise _lost_error(lost, inherited)
        commits = {item.name: found[item.name] for item in unread}
        return cls(inherited=inherited, left=left, targets=targets, commits=commits)


class StageOutputReader(FileReader):
    """
    Reads the files of commits; its schema has the columns of all files that their sinks have committed.

    :param target: Directory of the sinks.
    :param commits: Commits in this directory, by the names of their items.
    :param columns: Columns to read; all for ``None``.
    :param restored: State from :meth:`snapshot` of an earlier reader.
    :param earlier: Output that another job has listed.
    :param is_new_run: Whether that is the reader of an earlier run; new columns are then read too.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: CheckpointStorage,
        commits: Mapping[str, Commit],
        columns: tuple[str, ...] | None,
        on_change: OnChange,
        restored: Mapping[str, Any],
        earlier: EarlierOutput,
        *,
        is_new_run: bool = False,
    ) -> None:
        file_format = FileFormat(name="parquet", options={}, columns=columns)
        self._targets = (target, *earlier.targets)
        listing = FileListing(parse_paths([each.base_uri for each in self._targets]), target.options)
        super().__init__(spark, file_format, listing, (), on_change=on_change, restored=restored, is_new_run=is_new_run)
        self._commits = {**commits, **earlier.commits}
        self._earlier = earlier

    @override
    def snapshot(self) -> dict[str, Any]:
        inherited = dict(self._earlier.inherited)
        own = {_TARGET: _storable(self._targets[0])} | ({_INHERITED: inherited} if inherited else {})
        return super().snapshot() | own

    @override
    def require_unchanged(self, items: Sequence[Item]) -> None:
        owners = {file.uri: item.name for item in items for file in self._commits[item.name].files}
        sizes = {file.uri: file.size_bytes for item in items for file in self._commits[item.name].files}
        changes = self.listing.changes([Item(uri, size, b"") for uri, size in sizes.items()])
        # The name of a file identifies its content, so a new modification time is not a change.
        changed = [item.name for item in changes.changed if item.size_bytes != sizes[item.name]]
        gone = dict.fromkeys(owners[uri] for uri in [*(item.name for item in changes.vanished), *changed])
        lost = [name for name in gone if name in self._earlier.commits]
        if lost:
            raise _lost_error(lost, self._earlier.inherited)
        if gone:
            raise retraction_error(list(gone), self._on_change, restart_or_rewind(Ledger(()), new_run=False))

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        return self.load_files([file.uri for split in splits for file in self._commits[split.item.name].files])

    @override
    def _infer_schema(self) -> StructType:
        return schema_of(self._targets, {commit.lineage for commit in self._commits.values()})


def commits_in(target: CheckpointStorage) -> tuple[Commit, ...]:
    """
    Return the checkpoints with valid output, in the order of their commits.

    :raises InvalidConfigurationError: if no sink has written to the directory.
    :raises StorageError: if the storage fails, or sinks commit faster than their ledgers can be read.
    """
    commits = _committed(target)
    if not commits:
        _require_ledger(target)
    return commits


def _committed(target: CheckpointStorage) -> tuple[Commit, ...]:
    by_commit = sorted(committed_files(target.base_uri, storage_options=target.options), key=_commit_of)
    groups = ((commit, tuple(files)) for commit, files in groupby(by_commit, key=_commit_of))
    return tuple(Commit(lineage, checkpoint_id, files) for (checkpoint_id, lineage), files in groups)


def schema_of(targets: Iterable[CheckpointStorage], lineages: AbstractSet[str]) -> StructType:
    """Return the columns of all files that the sinks of some lineages have committed to directories."""
    logs = (log for target in targets for lineage, log in logs_of_target(target).items() if lineage in lineages)
    newest = [files.latest(files.read()[0]) for files in logs]
    tasks = (task for each in newest if each is not None for task in each.committables)
    return spark_schema(merged_schema(decode_schema(task.schema) for task in tasks))


def _commit_of(file: CommittedFile) -> tuple[int, str]:
    return file.checkpoint_id, file.lineage


def _require_ledger(target: CheckpointStorage) -> None:
    ledgers = ledger_storage(target)
    if not ledgers.list_files(ledgers.base_uri):
        raise InvalidConfigurationError(
            f"Expected output of a ParquetSink in {target!r}, found no log of its commits; correct the path, or run "
            "the upstream stage first."
        )


def _inherited_targets(opening: Opening) -> dict[str, str]:
    state = opening.reader_state
    items = opening.before.ledger.items if opening.before is not None and opening.is_of_other_job else ()
    with decoding("the directories of earlier output"):
        inherited = {str(lineage): str(uri) for lineage, uri in dict(state.get(_INHERITED, {})).items()}
    return dict.fromkeys(map(_lineage_in, items), str(state.get(_TARGET, ""))) | inherited


def _with_unlisted(
    ledger: Ledger, opening: Opening, target: CheckpointStorage, allowed: AllowedLocations
) -> tuple[Ledger, dict[str, str]]:
    """
    Add the output to a ledger that the savepoint of another job contains, and its reader had not listed.

    The new upstream stage continues after that output, so that it is in no other directory.

    :return: The ledger, and the directories of the lineages of that job.
    """
    inherited, here = _inherited_targets(opening), logs_of_target(target).keys()
    before = str(opening.reader_state.get(_TARGET, ""))
    if opening.is_of_other_job and not opening.cuts:
        _warn_of_unknown_cuts(inherited if ledger.items else {"": before}, here, target)
    listed = {lineage: _last_listed(ledger, lineage) for lineage in opening.cuts}
    cuts = {lineage: cut for lineage, cut in opening.cuts.items() if lineage not in here and cut[1] > listed[lineage]}
    # A reader that has listed nothing does not know which of the stages write to its directory.
    needed = [lineage for lineage in cuts if lineage in inherited or (before and not ledger.items)]
    for uri in sorted({inherited.get(lineage, before) for lineage in needed}):
        found = _output_up_to(cuts, listed, uri, inherited, target, allowed)
        ledger = ledger.with_items([*ledger.items, *found])
        inherited |= {_lineage_in(item): uri for item in found}
    return ledger, inherited


def _warn_of_unknown_cuts(inherited: Mapping[str, str], here: Collection[str], target: CheckpointStorage) -> None:
    # Only a savepoint of the whole job tells after which output the new upstream stage continues.
    uris = {uri for lineage, uri in inherited.items() if lineage not in here} - {"", target.base_uri}
    if uris:
        log.warning(
            "The stage continues a checkpoint of it alone, and reads %r instead of %s: output there that the "
            "checkpoint had not listed is not read. If the upstream stage has been forked too, start all stages from "
            "one savepoint of the whole job",
            target,
            ", ".join(map(redact, sorted(uris))),
        )


def _output_up_to(
    cuts: Mapping[str, tuple[int, int]],
    listed: Mapping[str, int],
    uri: str,
    inherited: Mapping[str, str],
    target: CheckpointStorage,
    allowed: AllowedLocations,
) -> list[Item]:
    known = {lineage for lineage in cuts if inherited.get(lineage) == uri}
    if not uri:
        raise _lost_error([f"{lineage}/{cuts[lineage][1]}" for lineage in known], inherited)
    allowed.require(uri)
    directory = open_target(uri, target.options)
    logs = logs_of_target(directory)
    lost = [f"{lineage}/{cuts[lineage][1]}" for lineage in known - logs.keys()]
    for lineage in cuts.keys() & logs.keys():
        lost += _retracted_up_to(logs[lineage].read()[0], lineage, cuts[lineage], listed[lineage])
    if lost:
        raise _lost_error(lost, dict.fromkeys(map(_lineage_of, lost), uri))
    found = (commit for commit in _committed(directory) if commit.lineage in cuts)
    return [c.item for c in found if listed[c.lineage] < c.checkpoint_id <= cuts[c.lineage][1]]


def _retracted_up_to(log: CommitLog, lineage: str, cut: tuple[int, int], listed: int) -> list[str]:
    """Return the names of output up to a cut that was retracted later, and that its reader had not listed."""
    epoch, last = cut
    if epoch <= log.forgotten:
        return [f"{lineage}/{last}"]
    ancestry = Ancestry(((epoch, last), *log.ancestry_of(epoch).segments[1:]))
    return [f"{lineage}/{each.last}" for each in within(log.retracted, ancestry) if each.last > listed]


def _last_listed(ledger: Ledger, lineage: str) -> int:
    numbers = (item.name.rpartition("/")[2] for item in ledger.items if _lineage_in(item) == lineage)
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _storable(target: CheckpointStorage) -> str:
    # Checkpoints contain no credentials.
    return target.base_uri if redact(target.base_uri) == target.base_uri else ""


def reconcile_commits(
    ledger: Ledger,
    now: Sequence[Item],
    *,
    on_change: OnChange,
    new_run: bool,
    left: AbstractSet[str] = frozenset(),
) -> Ledger:
    """
    Return the ledger after a new listing of the commits.

    A new run adds the commits that appeared since, and drops unread commits that were retracted. Within a run, any
    retracted commit is a change.

    :param now: All valid commits.
    :param left: Lineages of another job that the directory does not have; their commits remain in the ledger.
    :raises SourceChangedError: if commits were retracted and the policy is ``FAIL``.
    :raises SourceRestartRequiredError: if commits were retracted and the policy is ``RESTART``.
    """
    followed = [item for item in ledger.items if _lineage_in(item) not in left]
    changes, finished = compare(followed, now), ledger.finished_names
    retracted = dict.fromkeys(item.name for item in (*changes.vanished, *changes.changed))
    unexpected = [name for name in retracted if not new_run or name in finished]
    if unexpected and on_change is not OnChange.IGNORE:
        raise retraction_error(unexpected, on_change, restart_or_rewind(ledger, new_run=new_run))
    known = [item for item in ledger.items if item.name not in retracted]
    names = {item.name for item in known}
    appeared = [item for item in now if item.name not in names]
    return ledger.with_items([*known, *appeared] if new_run else known)


def _lost_error(names: Sequence[str], inherited: Mapping[str, str]) -> SourceChangedError:
    # No policy helps: no other directory has this output.
    uris = sorted({inherited[_lineage_of(name)] for name in names})
    known = ", ".join(redact(uri) or "a directory whose URI has credentials" for uri in uris)
    return SourceChangedError(
        f"Expected the output that another job had listed for this stage in {known}, found that {_shown(names)} was "
        "retracted, or that its files are missing. Restore the directory from a backup, set the path of the source to "
        "the directory in which the output is now, or restore a savepoint from before the output was listed."
    )


def retraction_error(
    names: Sequence[str], on_change: OnChange, remedy: str
) -> SourceChangedError | SourceRestartRequiredError:
    """
    Return the error for retracted commits.

    :param remedy: What the user can do, besides ignoring the change.
    """
    return change_error(
        f"Expected the output of the upstream stage as it was listed, found that it retracted {_shown(names)}, because "
        "it restored an earlier checkpoint or started over",
        f"Set on_change to 'ignore' to retain what was read and continue with the current output, or {remedy}.",
        on_change,
    )


def _shown(names: Sequence[str]) -> str:
    pairs = [name.partition("/") for name in names]
    return some_of([f"checkpoint {checkpoint} of {lineage}" for lineage, _, checkpoint in pairs])


def _lineage_in(item: Item) -> str:
    return _lineage_of(item.name)


def _lineage_of(name: str) -> str:
    return name.partition("/")[0]
