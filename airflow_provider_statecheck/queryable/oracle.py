"""
Oracles of the locations of a job's queryable state, and the owners of its names.

An oracle follows the rows of its job by their version: each request checks the version, and only a changed one makes
the oracle read the newest checkpoints. Of these, it loads the metadata of those that it does not know.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
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
    DuplicateNameError,
    StateCheckError,
    UnknownKvStateIdError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf, checkpoints_as_of
from airflow_provider_statecheck.queryable.locations import (
    Claim,
    KvStateLocation,
    KvStateLocationRegistry,
    NamedState,
    OpenStorage,
    StageStates,
    records_of_stages,
)
from airflow_provider_statecheck.queryable.queries import QueryableName
from airflow_provider_statecheck.storage.large_files import LARGE

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
        """The version of the known locations; it grows with each change of the job."""

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

    @property
    def metadata_bytes(self) -> int:
        """The size in bytes of the metadata of the checkpoints that are held between calls."""

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
        self._earlier = LruCache[tuple[_CheckpointKey, ...], LoadedLocations](
            MAX_EARLIER, lambda found: 1 + found.metadata_bytes // LARGE
        )
        self._chosen = LruCache[tuple[RowsVersion, AsOf], tuple[CheckpointRecord, ...]](MAX_EARLIER, lambda _: 1)
        self._view: JobView | None = None
        self._version: RowsVersion | None = None
        # The last wish for a refresh and the last fulfilled one. A wish during a refresh is another object, and stays
        # open.
        self._wished = self._fulfilled = object()
        self._follow = SharedCall(self._follow_rows)

    @property
    def metadata_bytes(self) -> int:
        """The size of the held metadata; see :attr:`KvStateLocationOracle.metadata_bytes`."""
        return sum(each.metadata_bytes for each in (self._latest, *self._earlier.values()))

    @property
    def version(self) -> int:
        """The version of the job's rows at the last check; 0 before the first."""
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
        # They come from a check that another request made earlier, or the database was restored from a backup. New rows
        # tell.
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
        """Whether files were missing, which happens if newer checkpoints were completed meanwhile."""
        return any(isinstance(problem, UnknownKvStateIdError) for problem in self.problems.values())


class LoadedLocations:
    """
    Locations of the states of a job in some of its checkpoints, one of each operator. Safe for threads.

    The states that functions register in ``open`` claim their names first, then those that they register later, each in
    the order of the uids of the stages. The owner of a name therefore does not depend on which state files were read.

    The owner of a name is *in doubt* while it is not known whether a state with an earlier claim exists. A name in
    doubt is not registered for readers. Two things raise doubt:

    - The checkpoint of a stage cannot be read that may have an earlier claim, unless the state owned the name when the
      checkpoints of all stages were read last.
    - The state was registered after ``open``, and the state files of an earlier stage have not been read.
    """

    def __init__(self, job_id: JobId, open_storage: OpenStorage) -> None:
        self._open_storage = open_storage
        self._stages: tuple[StageStates, ...] = ()
        self._problems: Mapping[str, StateCheckError] = {}
        self._registry = KvStateLocationRegistry(job_id, {})
        self._refused: dict[Claim, QueryableName] = {}
        self._logged: set[Claim] = set()
        self._owners: dict[str, str] = {}
        self._in_doubt: AbstractSet[str] = frozenset()
        self._replacing = Lock()
        self._lock = Lock()

    @property
    def has_problems(self) -> bool:
        """Whether a checkpoint could not be read."""
        return bool(self._problems)

    @property
    def metadata_bytes(self) -> int:
        """The size in bytes of the metadata that is held, before it was decoded."""
        return sum(stage.record.metadata_size for stage in self._stages)

    def loaded(self, operators: Sequence[OperatorRecord], records: Sequence[CheckpointRecord]) -> LoadedStages:
        """
        Load the stages of checkpoints, except those that are already known.

        Operators register their names in the order of their uids.

        :param records: At most one checkpoint of each operator.
        :raises StorageError: if the storage fails.
        """
        uids = {operator.operator_id: operator.uid for operator in operators}
        known = {stage.record.operator_id: stage for stage in self._stages}
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
        :raises StateCheckError: if the name is not registered or its owner is in doubt, and a checkpoint could not be
            read.
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
        """
        Return the served and then the refused states, also those that were registered after ``open``.

        Those whose names have an owner in doubt are left out.
        """
        about_to_wait()
        with self._replacing:
            self._complete()
            served = (state.listed() for _, state in _named(self._stages) if state.claim not in self._refused)
            return tuple(each for each in (*served, *self._refused.values()) if each.name not in self._in_doubt)

    def _registered(self, name: str) -> KvStateLocation:
        with self._lock:
            if name in self._in_doubt:
                raise UnknownKvStateLocationError(
                    f"Expected one owner of the queryable name {name!r}, found a stage that may also claim it and "
                    "whose checkpoint is not read; repeat the query.",
                    name=name,
                )
            return self._registry.location(name)

    def _complete(self) -> None:
        stages = {stage.uid: stage for stage in self._stages}
        if not all(stage.is_complete for stage in stages.values()):
            completed = _loaded((uid, stage.completed) for uid, stage in stages.items())
            stages |= {stage.uid: stage for stage in completed.stages}
            self._apply(tuple(stages.values()), {**self._problems, **completed.problems})

    def _stage(self, record: CheckpointRecord, uid: str, known: StageStates | None) -> StageStates:
        if known is not None and known.uid == uid and _key_of(known.record) == _key_of(record):
            return known
        stage = StageStates.load(self._open_storage, record, uid)
        return stage.completed() if known is not None and known.has_late_names else stage

    def _apply(self, stages: Sequence[StageStates], problems: Mapping[str, StateCheckError]) -> None:
        """
        Replace the stages, which are in the order of their uids.

        A name that several functions claim is registered again in the order of claims, so all processes agree on its
        owner.
        """
        unread = problems.keys() - {stage.uid for stage in stages}
        with self._lock:
            before, self._stages, self._problems = self._stages, tuple(stages), problems
            kept = set(map(id, before)) & set(map(id, stages))
            contested = _contested(before) | _contested(stages)
            for state in _affected(before, kept, contested):
                self._unregister(state)
            self._registry.operators = {state.uid: state.num_key_groups for _, state in _named(stages)}
            self._refused = {}
            for state in _affected(stages, kept, contested):
                self._register(state)
            owning = [(stage, state) for stage, state in _named(stages) if state.claim not in self._refused]
            self._in_doubt = {state.name for stage, state in owning if self._is_doubtful(stage, state, unread)}
            if not unread:
                self._owners = {state.name: state.uid for _, state in owning if state.name not in self._in_doubt}

    def _is_doubtful(self, stage: StageStates, state: NamedState, unread: AbstractSet[str]) -> bool:
        has_rivals = any(state.is_late or uid < stage.uid for uid in unread)
        if has_rivals and self._owners.get(state.name) != state.uid:
            return True
        return state.is_late and not all(each.is_complete for each in self._stages if each.uid < stage.uid)

    def _register(self, state: NamedState) -> None:
        try:
            self._require_first(state)
            for key_groups, address in state.registrations:
                self._registry.register(state.uid, key_groups, state.name, address)
        except DuplicateNameError as error:
            self._refuse(state, error)

    def _require_first(self, state: NamedState) -> None:
        # The registry would take it as a new registration of the same state.
        if self._registry.owner_of(state.name) == state.uid:
            raise DuplicateNameError(
                f"Expected each queryable name for one state of {state.uid!r}, found {state.name!r} for several; give "
                "each state its own queryable_name.",
                name=state.name,
            )

    def _unregister(self, state: NamedState) -> None:
        if self._registry.owner_of(state.name) == state.uid:
            for key_groups, _ in state.registrations:
                self._registry.unregister(state.uid, key_groups, state.name)

    def _refuse(self, state: NamedState, error: DuplicateNameError) -> None:
        self._refused[state.claim] = state.listed(refused=str(error))
        if state.claim not in self._logged:
            self._logged.add(state.claim)
            log.warning("A state is not served: %s", error)


def _named(stages: Sequence[StageStates]) -> Iterator[tuple[StageStates, NamedState]]:
    return ((stage, state) for stage in stages for state in stage.named)


def _contested(stages: Sequence[StageStates]) -> set[str]:
    claims = Counter(state.name for _, state in _named(stages))
    return {name for name, count in claims.items() if count > 1}


def _affected(stages: Sequence[StageStates], kept: set[int], contested: set[str]) -> list[NamedState]:
    affected = (state for stage, state in _named(stages) if id(stage) not in kept or state.name in contested)
    return sorted(affected, key=lambda state: state.is_late)


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

        A refusal of a shared call may concern the permission of its first caller only, so that the others make calls of
        their own.
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
