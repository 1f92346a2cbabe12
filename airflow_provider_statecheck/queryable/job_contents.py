"""Contents of the checkpoints of a job: their list, rows of snapshots, and finished items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    StateCheckError,
    UnknownStateError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf, checkpoints_as_of
from airflow_provider_statecheck.queryable.locations import OpenStorage, records_of_stages
from airflow_provider_statecheck.queryable.oracle import LatestRows
from airflow_provider_statecheck.state.reading.checkpoint_contents import (
    CheckpointContents,
    ContentsListing,
    Items,
    UnreadableContent,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.snapshot_reader import SnapshotReader, find_snapshot, listed_names
from airflow_provider_statecheck.storage.metadata_file import UNREADABLE, load_document
from airflow_provider_statecheck.storage.pointers import pointer_uri

Answer = TypeVar("Answer")

_TRIES = 3
"""How often the latest checkpoints are looked up if files of a subsumed one are gone."""


@dataclass(frozen=True, kw_only=True)
class StageContents:
    """A checkpoint of one operator of a job, and what it holds."""

    uid: str
    """Uid of the operator."""
    checkpoint_id: int
    pointer: str
    completed_at: datetime | None
    """Time by the coordinator; ``None`` for a checkpoint that was not found by its job."""
    loaded: CheckpointContents | StateCheckError
    """The contents, or the error if the metadata is damaged or missing."""

    @property
    def error(self) -> StateCheckError | None:
        """The error of the metadata, or ``None``."""
        return self.loaded if isinstance(self.loaded, StateCheckError) else None

    @property
    def contents(self) -> CheckpointContents:
        """The contents; raises :attr:`error`."""
        if isinstance(self.loaded, StateCheckError):
            raise self.loaded.with_traceback(None)
        return self.loaded

    @cached_property
    def listing(self) -> ContentsListing:
        """
        All contents. What is damaged or missing is listed as unreadable.

        :raises StorageError: if the storage fails.
        """
        if not isinstance(self.loaded, StateCheckError):
            return self.loaded.listing()
        unreadable = UnreadableContent(kind="checkpoint", name="", code=self.loaded.code, message=str(self.loaded))
        return ContentsListing(unreadable=(unreadable,))


class JobContents:
    """Reads the contents of the checkpoints of jobs."""

    def __init__(self, rows: LatestRows, open_storage: OpenStorage) -> None:
        self._rows = rows
        self._open_storage = open_storage

    def read(
        self,
        job_id: JobId,
        answer: Callable[[tuple[StageContents, ...]], Answer],
        *,
        uid: str | None = None,
        as_of: AsOf = LATEST,
    ) -> Answer:
        """
        Return what a function makes of the checkpoints of a job, one of each operator.

        The function is called again if the latest checkpoint was subsumed while it read its files. It gets the error of
        damaged or missing metadata when it reads the contents.

        :param answer: Function that reads the checkpoints.
        :param uid: Uid of an operator; by default all.
        :param as_of: The checkpoint to read; by default the latest of each operator.
        :raises CheckpointNotFoundError: if there is no such job, operator or checkpoint.
        :raises CorruptStateError: if the metadata is corrupt.
        :raises StorageError: if the storage fails.
        """
        for _ in range(_TRIES - 1):
            records = self._records(job_id, uid, as_of)
            try:
                return answer(self._loaded(records))
            except CheckpointNotFoundError:
                if records == self._records(job_id, uid, as_of):
                    raise
        return answer(self._loaded(self._records(job_id, uid, as_of)))

    def stages(
        self, job_id: JobId, *, uid: str | None = None, as_of: AsOf = LATEST, lists: bool = False
    ) -> tuple[StageContents, ...]:
        """
        Return the checkpoints of a job, one of each operator, also those whose metadata is damaged or missing.

        :param uid: Uid of an operator; by default all.
        :param as_of: The checkpoint to read; by default the latest of each operator.
        :param lists: Whether to read the listing of each as well.
        :raises CheckpointNotFoundError: if there is no such job, operator or checkpoint.
        :raises StateCheckError: if the metadata of no checkpoint can be read; this is its error.
        :raises StorageError: if the storage fails.
        """
        records = self._records(job_id, uid, as_of)
        found = self._loaded(records)
        for _ in range(_TRIES - 1):
            if not any(_lacks_files(each, lists=lists) for each in found):
                break
            # The files of a checkpoint that was subsumed meanwhile are missing, too.
            newer = self._records(job_id, uid, as_of)
            if newer == records:
                break
            records, found = newer, self._loaded(newer)
        errors = [each.error for each in found if each.error is not None]
        if len(errors) == len(found):
            raise errors[0].with_traceback(None)
        return found

    def _records(
        self, job_id: JobId, uid: str | None, as_of: AsOf
    ) -> tuple[tuple[OperatorRecord, CheckpointRecord], ...]:
        operators, checkpoints = self._rows_of(job_id, as_of)
        by_id = {operator.operator_id: operator for operator in operators}
        known = tuple((by_id[each.operator_id], each) for each in checkpoints)
        found = tuple((operator, each) for operator, each in known if uid in (None, operator.uid))
        if not found:
            uids = ", ".join(repr(operator.uid) for operator, _ in known) or "none"
            wanted = "a completed checkpoint" if uid is None else f"a completed checkpoint of {uid!r}"
            raise CheckpointNotFoundError(f"Expected {wanted} in job {job_id}, found checkpoints of {uids}.")
        return found

    def _rows_of(self, job_id: JobId, as_of: AsOf) -> tuple[tuple[OperatorRecord, ...], tuple[CheckpointRecord, ...]]:
        if as_of.is_latest:
            latest = self._rows.latest_checkpoints(job_id)
            assert latest is not None  # noqa: S101 - no version is known
            return latest.operators, latest.checkpoints
        view = self._rows.describe(job_id)
        found = checkpoints_as_of(view, as_of)
        return view.operators, records_of_stages(self._open_storage, view, found)

    def _loaded(self, records: Sequence[tuple[OperatorRecord, CheckpointRecord]]) -> tuple[StageContents, ...]:
        return tuple(
            StageContents(
                uid=operator.uid,
                checkpoint_id=record.checkpoint_id,
                pointer=record.location,
                completed_at=record.completed_at,
                loaded=self._contents(record),
            )
            for operator, record in records
        )

    def _contents(self, record: CheckpointRecord) -> CheckpointContents | StateCheckError:
        try:
            storage = self._open_storage(record.location).allowing(record.location, record.metadata_uri)
            return CheckpointContents(CheckpointStates(storage, load_document(storage, record)))
        except UNREADABLE as error:
            return error


def stages_at(open_storage: OpenStorage, pointer: str, uid: str | None = None) -> tuple[StageContents, ...]:
    """
    Return the contents of a checkpoint or savepoint of any job, by stage.

    :param pointer: URI of its directory or of its metadata file.
    :param uid: Uid of a stage; by default all.
    :raises CheckpointNotFoundError: if there is none.
    :raises UnknownStateError: if it has no such stage; the message lists the stages.
    :raises CorruptStateError: if the metadata is corrupt.
    :raises StorageError: if the storage fails.
    """
    uri = pointer_uri(pointer)
    states = CheckpointStates.of(open_storage(uri), uri)
    stages = states.stages if uid is None else (states.of_stage(uid),)
    return tuple(
        StageContents(
            uid=stage.document.uid,
            checkpoint_id=stage.document.checkpoint_id,
            pointer=uri,
            completed_at=None,
            loaded=CheckpointContents(stage),
        )
        for stage in stages
    )


def _lacks_files(stage: StageContents, *, lists: bool) -> bool:
    if not lists:
        return isinstance(stage.error, CheckpointNotFoundError)
    return any(each.code == CheckpointNotFoundError.code for each in stage.listing.unreadable)


def snapshot_in(
    stages: Sequence[StageContents], name: str, scope: str | None = None, columns: Sequence[str] | None = None
) -> tuple[StageContents, SnapshotReader]:
    """
    Return the stage that has a snapshot, and a reader of the snapshot.

    :param scope: Items of the loops around it, or ``""`` for none; by default any.
    :param columns: Names of the columns to read, by default all.
    :raises UnknownStateError: if there is none; the message lists the snapshots.
    :raises InvalidConfigurationError: if several operators or scopes have the name.
    """
    stage = _only_stage(stages, f"the snapshot {name!r}", lambda each: name in each.contents.snapshot_names)
    states = stage.contents.checkpoint
    return stage, SnapshotReader(states.storage, find_snapshot(states.document, name, scope), columns)


def items_in(
    stages: Sequence[StageContents], loop: str, *, after: str | None = None, limit: int
) -> tuple[StageContents, Items]:
    """
    Return the stage that has a loop with finished items, and a page of the items.

    :raises UnknownStateError: if there is none; the message lists the loops.
    :raises InvalidConfigurationError: if several operators have a loop of this name.
    """
    stage = _only_stage(stages, f"the loop {loop!r}", lambda each: loop in each.contents.loops)
    return stage, stage.contents.items(loop, after=after, limit=limit)


def _only_stage(stages: Sequence[StageContents], wanted: str, has_it: Callable[[StageContents], bool]) -> StageContents:
    found = [each for each in stages if has_it(each)]
    if len(found) > 1:
        uids = ", ".join(repr(each.uid) for each in found)
        raise InvalidConfigurationError(
            f"Expected {wanted} in one operator of the job, found it in {uids}; set the uid of the operator."
        )
    if not found:
        held = ((each.uid, (*each.contents.snapshot_names, *each.contents.loops)) for each in stages)
        known = "; ".join(f"{uid}: {listed_names(names) or 'none'}" for uid, names in held)
        raise UnknownStateError(f"Expected {wanted} in a checkpoint of the job, found the snapshots and loops {known}.")
    return found[0]
