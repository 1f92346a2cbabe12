"""
Oracles of the locations of a job's queryable state.

An oracle follows the rows of its job by their version: each request checks the version, and only a changed one makes the
oracle read the newest checkpoints. Of these, it loads the metadata of those that it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Protocol

from airflow_provider_statecheck.cached_reads import LruCache, WouldWaitError, about_to_wait, may_wait
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import (
    StateCheckError,
    UnknownKvStateIdError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf, checkpoints_as_of
from airflow_provider_statecheck.queryable.locations import (
    JobLocations,
    KvStateLocation,
    OpenStorage,
    StageStates,
    records_of_stages,
)
from airflow_provider_statecheck.queryable.queries import QueryableName

log = logging.getLogger(__name__)

_CheckpointKey = tuple[OperatorId, int, str]

MAX_EARLIER = 4
"""
Number of earlier checkpoints of a job whose locations are cached.

Each costs the decoded ``_metadata`` of one checkpoint of each stage, which grows with the number of states and files.
"""


class KvStateLocationOracle(Protocol):
    """Knows the locations of the queryable states of one job. Its calls may come from several threads at once."""

    @property
    def version(self) -> int:
        """Return the version of the known locations; it grows with each change of the job."""

    def request_kv_state_location(self, name: str, *, as_of: AsOf = LATEST, refresh: bool = False) -> KvStateLocation:
        """
        Return the location of a state in a checkpoint that is not older than the latest one at the time of the call.

        :param name: Queryable name; of an instance of a mapped task, ``name[map_key]``.
        :param as_of: The checkpoint, by default the latest one.
        :param refresh: Whether to read the locations again even if the job has not changed.
        :raises CheckpointNotFoundError: if the job or the checkpoint does not exist.
        :raises UnknownKvStateLocationError: if no state is registered under the name; the message lists the names.
        :raises UnknownKvStateIdError: if the checkpoint was deleted meanwhile; repeat the call with ``refresh``.
        :raises CoordinatorUnavailableError: if the rows of the job cannot be read.
        :raises StorageError: if the storage fails.
        """

    def names(self, *, as_of: AsOf = LATEST) -> tuple[QueryableName, ...]:
        """
        Return the queryable states, first the served and then the refused ones.

        States in a checkpoint that cannot be read are left out. Raises like :meth:`request_kv_state_location`.
        """


class LatestRows(Protocol):
    """Access to the rows of jobs; every gateway to the coordinator has it."""

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""

    def describe(self, job_id: JobId) -> JobView:
        """Return the current rows of a job."""


class CheckpointLocationOracle:
    """Oracle that finds the states of a job in its completed checkpoints. Safe for threads."""

    def __init__(self, job_id: JobId, rows: LatestRows, open_storage: OpenStorage) -> None:
        self._job_id = job_id
        self._rows = rows
        self._open_storage = open_storage
        self._latest = LoadedLocations(job_id, open_storage)
        self._earlier = LruCache[tuple[_CheckpointKey, ...], LoadedLocations](MAX_EARLIER, lambda _: 1)
        self._chosen = LruCache[tuple[RowsVersion, AsOf], tuple[CheckpointRecord, ...]](MAX_EARLIER, lambda _: 1)
        self._view: JobView | None = None
        self._version: RowsVersion | None = None
        # The last wish for a refresh and the last fulfilled one. A wish during a refresh is another object, and stays open.
        self._wished = self._fulfilled = object()
        self._follow = SharedCall(self._follow_rows)

    @property
    def version(self) -> int:
        """Return the version of the job's rows at the last check; 0 before the first."""
        return 0 if self._version is None else self._version.number

    def request_kv_state_location(self, name: str, *, as_of: AsOf = LATEST, refresh: bool = False) -> KvStateLocation:
        """Return the location of a state; see :meth:`KvStateLocationOracle.request_kv_state_location`."""
        if refresh:
            self._wished = object()
        try:
            return self._locations(as_of).location(name)
        except StateCheckError:
            # A failed look-up is not kept: the checkpoint may be readable at the next one.
            self._retry_problems()
            raise

    def names(self, *, as_of: AsOf = LATEST) -> tuple[QueryableName, ...]:
        """Return the queryable states; see :meth:`KvStateLocationOracle.names`."""
        self._retry_problems()
        return self._locations(as_of).names()

    def _retry_problems(self) -> None:
        if self._latest.has_problems:
            self._wished = object()

    def _locations(self, as_of: AsOf) -> LoadedLocations:
        self._follow()
        return self._latest if as_of.is_latest else self._as_of(as_of)

    def _follow_rows(self) -> None:
        wished = self._wished
        known = self._version if wished is self._fulfilled else None
        if known is None:
            about_to_wait()
        rows = self._newer_rows(known)
        if rows is None:
            return
        about_to_wait()
        loaded = self._latest.loaded(rows.operators, rows.checkpoints)
        # Files are deleted after the row says so. If they are missing and the rows are unchanged, they are lost.
        while loaded.is_outrun and (newer := self._newer_rows(rows.job.rows_version)) is not None:
            rows, loaded = newer, self._latest.loaded(newer.operators, newer.checkpoints)
        self._latest.replace(loaded)
        self._version, self._fulfilled = rows.job.rows_version, wished

    def _newer_rows(self, known: RowsVersion | None) -> LatestCheckpoints | None:
        rows = self._rows.latest_checkpoints(self._job_id, known)
        if rows is None or known is None or rows.job.rows_version > known:
            return rows
        return None if rows.job.rows_version == known else self._rows_of_lower_version(known)

    def _rows_of_lower_version(self, known: RowsVersion) -> LatestCheckpoints | None:
        # They come from a check that another request made earlier, or the database was restored from a backup. New rows tell.
        about_to_wait()
        rows = self._rows.latest_checkpoints(self._job_id)
        return None if rows is None or rows.job.rows_version == known else rows

    def _as_of(self, as_of: AsOf) -> LoadedLocations:
        view = self._current_view()
        find = partial(self._find, view, as_of)
        records = self._chosen.get_or_load((view.job.rows_version, as_of), find)
        key = tuple(map(_key_of, records))
        found = self._earlier.get(key)
        if found is None or found.has_problems:
            found = LoadedLocations(self._job_id, self._open_storage)
            found.replace(found.loaded(view.operators, records))
            self._earlier.put(key, found)
        return found

    def _find(self, view: JobView, as_of: AsOf) -> tuple[CheckpointRecord, ...]:
        found = checkpoints_as_of(view, as_of)
        return records_of_stages(self._open_storage, view, found)

    def _current_view(self) -> JobView:
        view = self._view
        if view is None or view.job.rows_version != self._version:
            self._view = view = self._rows.describe(self._job_id)
        return view


@dataclass(frozen=True, slots=True)
class LoadedStages:
    """Stages of a job, and the errors of those whose checkpoints cannot be read."""

    stages: tuple[StageStates, ...]
    problems: Mapping[str, StateCheckError]
    """Error of each unreadable stage by its uid."""

    @property
    def is_outrun(self) -> bool:
        """Return whether files were missing, which happens if newer checkpoints were completed meanwhile."""
        return any(isinstance(problem, UnknownKvStateIdError) for problem in self.problems.values())


class LoadedLocations:
    """
    Locations of the states of a job in some of its checkpoints, one of each operator. Safe for threads.

    A checkpoint that cannot be read hides its own names, and the names of other stages that it may claim first: those whose
    owner is in doubt, see :class:`~airflow_provider_statecheck.queryable.locations.JobLocations`.
    """

    def __init__(self, job_id: JobId, open_storage: OpenStorage) -> None:
        self._open_storage = open_storage
        self._locations = JobLocations(job_id)
        self._problems: Mapping[str, StateCheckError] = {}
        self._replacing = Lock()
        self._lock = Lock()

    @property
    def has_problems(self) -> bool:
        """Return whether a checkpoint could not be read."""
        return bool(self._problems)

    def loaded(self, operators: Sequence[OperatorRecord], records: Sequence[CheckpointRecord]) -> LoadedStages:
        """
        Load the stages of checkpoints, except those that are already known.

        Operators register their names in the order of their uids.

        :param records: At most one checkpoint of each operator.
        :raises StorageError: if the storage fails.
        """
        uids = {operator.operator_id: operator.uid for operator in operators}
        known = {stage.record.operator_id: stage for stage in self._locations.stages}
        return _loaded(
            (uids[each.operator_id], partial(self._stage, each, uids[each.operator_id], known.get(each.operator_id)))
            for each in sorted(records, key=lambda each: uids[each.operator_id])
        )

    def replace(self, loaded: LoadedStages) -> None:
        """Replace all stages."""
        with self._replacing:
            self._apply(loaded.stages, loaded.problems)

    def location(self, name: str) -> KvStateLocation:
        """
        Return the location of a name, also if its state was registered after ``open``.

        :raises UnknownKvStateLocationError: if the name is not registered in any of the checkpoints.
        :raises StateCheckError: if the name is not registered or its owner is in doubt, and a checkpoint could not be read.
        """
        try:
            return self._registered(name)
        except UnknownKvStateLocationError:
            about_to_wait()
        try:
            with self._replacing:
                self._complete()
                return self._registered(name)
        except UnknownKvStateLocationError as unknown:
            # Each raise of the same error would add to its traceback.
            raise next(iter(self._problems.values()), unknown).with_traceback(None) from None

    def names(self) -> tuple[QueryableName, ...]:
        """Return the served and then the refused states, also those that were registered after ``open``."""
        about_to_wait()
        with self._replacing:
            self._complete()
            return self._locations.names()

    def _registered(self, name: str) -> KvStateLocation:
        with self._lock:
            return self._locations.location(name)

    def _complete(self) -> None:
        stages = {stage.uid: stage for stage in self._locations.stages}
        if not all(stage.is_complete for stage in stages.values()):
            completed = _loaded((uid, stage.completed) for uid, stage in stages.items())
            stages |= {stage.uid: stage for stage in completed.stages}
            self._apply(tuple(stages.values()), {**self._problems, **completed.problems})

    def _apply(self, stages: Sequence[StageStates], problems: Mapping[str, StateCheckError]) -> None:
        unread = problems.keys() - {stage.uid for stage in stages}
        with self._lock:
            self._locations.update(stages, unread)
            self._problems = problems

    def _stage(self, record: CheckpointRecord, uid: str, known: StageStates | None) -> StageStates:
        if known is not None and known.uid == uid and _key_of(known.record) == _key_of(record):
            return known
        stage = StageStates.load(self._open_storage, record, uid)
        return stage.completed() if known is not None and known.has_late_names else stage


def _loaded(loads: Iterable[tuple[str, Callable[[], StageStates]]]) -> LoadedStages:
    stages, problems = list[StageStates](), dict[str, StateCheckError]()
    for uid, load in loads:
        try:
            stages.append(load())
        except StateCheckError as error:
            if error.retryable:
                raise
            log.warning("The queryable states of a checkpoint cannot be found: %s", error)
            problems[uid] = error
    return LoadedStages(tuple(stages), problems)


class SharedCall:
    """
    Function without arguments whose calls are shared between threads.

    Each caller gets the outcome of a call that began after its own; all that arrive during a call share the next one.

    :param call: The function.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._next: Future[None] | None = None
        self._arriving = Lock()
        self._running = Lock()

    def __call__(self) -> None:
        """
        Return after a call of the function that began after this one; raises its error.

        A refusal of a shared call may concern the permission of its first caller only, so that the others make calls of their own.
        """
        if not may_wait():
            self._call_at_once()
            return
        with self._arriving:
            joined = self._next
            mine = self._next = joined or Future()
        if joined is None:
            self._run(mine)
        try:
            mine.result()
        except StateCheckError as error:
            if error.retryable or joined is None:
                raise
            with self._running:
                self._call()

    def _call_at_once(self) -> None:
        # The outcome is not shared, because it may be the refusal to wait.
        if not self._running.acquire(blocking=False):
            raise WouldWaitError
        try:
            self._call()
        finally:
            self._running.release()

    def _run(self, mine: Future[None]) -> None:
        with self._running:
            with self._arriving:
                self._next = None
            try:
                self._call()
            except BaseException as error:
                mine.set_exception(error)
            else:
                mine.set_result(None)


def _key_of(record: CheckpointRecord) -> _CheckpointKey:
    return record.operator_id, record.checkpoint_id, record.metadata_sha256
