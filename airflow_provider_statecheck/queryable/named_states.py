"""
Named states of the stages of a job, each in one checkpoint.

The metadata of a checkpoint lists the states that a function registered in ``open``. States that were registered later are
listed in the state files, which are read only if a name is unknown.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.ids import JobId, map_key_of, operator_id_of, uid_with_key
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    DuplicateNameError,
    UnknownKvStateIdError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import is_of_whole_job
from airflow_provider_statecheck.queryable.locations import (
    KvStateAddress,
    KvStateLocation,
    KvStateLocationRegistry,
    OpenStorage,
)
from airflow_provider_statecheck.queryable.queries import QueryableName
from airflow_provider_statecheck.state.reading.checkpoint_states import (
    CheckpointStates,
    FunctionState,
    handles_of_subtask,
)
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.storage.metadata_file import load_document

log = logging.getLogger(__name__)

Registration = tuple[KeyGroupRange, KvStateAddress]
"""Key groups and address of a subtask."""
Claim = tuple[str, str, str]
"""Queryable name, uid of the function, and name of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedState:
    """State of a function that has a queryable name."""

    name: str
    """The queryable name, qualified with the map key of its task."""
    uid: str
    """Uid of the function, after the uid of its stage and ``/``."""
    num_key_groups: int
    registrations: tuple[Registration, ...]
    """Registrations of all subtasks."""
    is_late: bool
    """Whether the function registered the state after ``open``."""

    @property
    def claim(self) -> Claim:
        """Return what distinguishes the state from others that claim its queryable name."""
        _, address = self.registrations[0]
        return self.name, self.uid, address.content.schema.name

    def listed(self, refused: str = "") -> QueryableName:
        """Return the entry of the state in a list of names."""
        _, address = self.registrations[0]
        schema, key = address.content.schema, address.content.key
        return QueryableName(
            name=self.name,
            uid=self.uid,
            kind=schema.kind,
            key_columns=tuple((field["name"], field["type"]) for field in key.config["fields"]),
            user_key_type=None if schema.key is None else describe(schema.key),
            value_type=describe(schema.value),
            expires=schema.ttl,
            checkpoint_id=address.checkpoint_id,
            pointer=address.pointer,
            refused=refused,
        )


class StageStates:
    """
    Named states of one stage in one checkpoint.

    :param uid: Current uid of the stage; the checkpoint may have an earlier one.
    :param is_complete: Whether ``functions`` include the states that were registered after ``open``.
    :param late: Function and name of those of them that have a queryable name.
    """

    def __init__(
        self,
        record: CheckpointRecord,
        uid: str,
        states: CheckpointStates,
        functions: tuple[FunctionState, ...],
        *,
        is_complete: bool = False,
        late: AbstractSet[tuple[str, str]] = frozenset(),
    ) -> None:
        self.record = record
        self.uid = uid
        self._states = states
        self._functions = functions
        self.is_complete = is_complete
        self._late = late
        self.named = tuple(self._named())

    @classmethod
    def load(cls, open_storage: OpenStorage, record: CheckpointRecord, uid: str) -> StageStates:
        """
        Load the named states of a checkpoint.

        :raises UnknownKvStateIdError: if files of the checkpoint are gone.
        :raises CorruptStateError: if the metadata is corrupt.
        :raises IncompatibleCheckpointError: if the metadata has an unknown version.
        :raises StorageError: if the storage fails.
        """
        storage = open_storage(record.location).allowing(record.location, record.metadata_uri)
        with _present(record):
            states = CheckpointStates(storage, load_document(storage, record))
            return cls(record, uid, states, states.functions())

    def completed(self) -> StageStates:
        """
        Return the stage with the states that were registered after ``open``; raises like :meth:`load`.

        Reads the header of each state file.
        """
        if self.is_complete:
            return self
        with _present(self.record):
            functions = tuple(map(self._states.complete, self._functions))
            late = {
                (new.uid, state.name)
                for old, new in zip(self._functions, functions, strict=True)
                for state in new.schemas.keyed[len(old.schemas.keyed) :]
                if state.queryable_name is not None
            }
            return StageStates(self.record, self.uid, self._states, functions, is_complete=True, late=late)

    @property
    def has_late_names(self) -> bool:
        """Return whether a state that was registered after ``open`` has a queryable name, as far as it is known."""
        return bool(self._late)

    def _named(self) -> Iterator[NamedState]:
        for function in self._functions:
            for schema in function.schemas.keyed:
                if schema.queryable_name is not None:
                    yield NamedState(
                        name=uid_with_key(schema.queryable_name, map_key_of(self.uid)),
                        uid=f"{self.uid}/{function.uid}",
                        num_key_groups=function.operator.max_parallelism,
                        registrations=tuple(self._registrations(function, schema)),
                        is_late=(function.uid, schema.name) in self._late,
                    )

    def _registrations(self, function: FunctionState, schema: StateSchema) -> Iterator[Registration]:
        operator, record = function.operator, self.record
        content = self._states.content_of(function, schema)
        for index in range(operator.parallelism):
            # A subtask without state is registered, too: its keys are absent.
            address = KvStateAddress(
                kv_state_id=f"{record.job_id}/{record.checkpoint_id}/{operator.uid}/{schema.name}/{index}",
                pointer=record.location,
                checkpoint_id=record.checkpoint_id,
                completed_at=record.completed_at,
                content=replace(content, handles=tuple(handles_of_subtask(operator, index))),
            )
            yield key_group_range_of(index, operator.parallelism, operator.max_parallelism), address


def records_of_stages(
    open_storage: OpenStorage, view: JobView, records: Iterable[CheckpointRecord]
) -> tuple[CheckpointRecord, ...]:
    """
    Return one record for each stage, also of a savepoint of the whole job.

    :raises CheckpointNotFoundError: if the metadata of the savepoint is missing.
    :raises CorruptStateError: if it is corrupt.
    :raises StorageError: if the storage fails.
    """
    known = {operator.operator_id for operator in view.operators}
    found = (part for record in records for part in _records_of_parts(open_storage, record))
    return tuple(record for record in found if record.operator_id in known)


def _records_of_parts(open_storage: OpenStorage, record: CheckpointRecord) -> Iterator[CheckpointRecord]:
    if not is_of_whole_job(record):
        yield record
        return
    storage = open_storage(record.location).allowing(record.location, record.metadata_uri)
    for part in load_document(storage, record).parts:
        properties = replace(record.properties, part=part.uid)
        yield replace(record, operator_id=operator_id_of(part.uid), properties=properties)


@contextmanager
def _present(record: CheckpointRecord) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFoundError as error:
        raise UnknownKvStateIdError(
            f"Expected the files of checkpoint {record.checkpoint_id}, found them deleted, because newer checkpoints "
            f"subsumed it; query the latest checkpoint.",
            checkpoint_id=record.checkpoint_id,
        ) from error


class JobLocations:
    """
    Locations of the named states of all stages of a job. Not safe for threads.

    The states that functions register in ``open`` claim their names first, then those that they register later, each in the
    order of the uids of the stages. The owner of a name therefore does not depend on which state files were read.

    The owner of a name is *in doubt* while it is not known whether a state with an earlier claim exists. A name in doubt is
    not registered for readers. Two things raise doubt:

    - The checkpoint of a stage cannot be read that may have an earlier claim, unless the state owned the name when the
      checkpoints of all stages were read last.
    - The state was registered after ``open``, and the state files of an earlier stage have not been read.
    """

    def __init__(self, job_id: JobId) -> None:
        self.stages: tuple[StageStates, ...] = ()
        self._registry = KvStateLocationRegistry(job_id, {})
        self._refused: dict[Claim, QueryableName] = {}
        self._logged: set[Claim] = set()
        self._owners: dict[str, str] = {}
        self._in_doubt: AbstractSet[str] = frozenset()

    def update(self, stages: Sequence[StageStates], unread: AbstractSet[str] = frozenset()) -> None:
        """
        Replace the stages.

        A name that several functions claim is registered again in the order of claims, so all processes agree on its owner.

        :param stages: The stages in the order of their uids.
        :param unread: Uids of the stages whose checkpoints cannot be read.
        """
        before, self.stages = self.stages, tuple(stages)
        kept = set(map(id, before)) & set(map(id, stages))
        contested = _contested(before) | _contested(stages)
        for state in _affected(before, kept, contested):
            self._unregister(state)
        self._registry.operators = {state.uid: state.num_key_groups for stage in stages for state in stage.named}
        self._refused = {}
        for state in _affected(stages, kept, contested):
            self._register(state)
        self._in_doubt = self._doubtful(unread)
        if not unread:
            settled = set(self._registry.names) - self._in_doubt
            self._owners = {name: owner for name in settled if (owner := self._registry.owner_of(name))}

    def location(self, name: str) -> KvStateLocation:
        """
        Return the location of a name.

        :raises UnknownKvStateLocationError: if the name is not registered, or its owner is in doubt.
        """
        if name in self._in_doubt:
            raise UnknownKvStateLocationError(
                f"Expected one owner of the queryable name {name!r}, found a stage that may also claim it and whose "
                f"checkpoint is not read; repeat the query.",
                name=name,
            )
        return self._registry.location(name)

    def names(self) -> tuple[QueryableName, ...]:
        """Return the served and then the refused states, without those whose names have an owner in doubt."""
        named = (state for stage in self.stages for state in stage.named)
        served = (state for state in named if state.claim not in self._refused and state.name not in self._in_doubt)
        refused = (state for state in self._refused.values() if state.name not in self._in_doubt)
        return (*(state.listed() for state in served), *refused)

    def _doubtful(self, unread: AbstractSet[str]) -> AbstractSet[str]:
        named = ((stage, state) for stage in self.stages for state in stage.named)
        owning = ((stage, state) for stage, state in named if state.claim not in self._refused)
        return {state.name for stage, state in owning if self._is_doubtful(stage, state, unread)}

    def _is_doubtful(self, stage: StageStates, state: NamedState, unread: AbstractSet[str]) -> bool:
        has_rivals = any(state.is_late or uid < stage.uid for uid in unread)
        if has_rivals and self._owners.get(state.name) != state.uid:
            return True
        return state.is_late and not all(each.is_complete for each in self.stages if each.uid < stage.uid)

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
                f"Expected each queryable name for one state of {state.uid!r}, found {state.name!r} for several; give each "
                f"state its own queryable_name.",
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


def _contested(stages: Sequence[StageStates]) -> set[str]:
    claims = Counter(state.name for stage in stages for state in stage.named)
    return {name for name, count in claims.items() if count > 1}


def _affected(stages: Sequence[StageStates], kept: set[int], contested: set[str]) -> list[NamedState]:
    named = ((stage, state) for stage in stages for state in stage.named)
    affected = (state for stage, state in named if id(stage) not in kept or state.name in contested)
    return sorted(affected, key=lambda state: state.is_late)
