"""
Locations of queryable state: which checkpoint holds the state of a name and a key group.

The rules of registration are Flink's. A name belongs to the first operator that registers it, and a second operator is
refused.

The metadata of a checkpoint lists the states that a function registered in ``open``. States that were registered later
are listed in the state files, which are read only if a name is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, map_key_of, operator_id_of, uid_with_key
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    DuplicateNameError,
    InvalidConfigurationError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import is_of_whole_job
from airflow_provider_statecheck.queryable.queries import QueryableName
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import (
    CheckpointStates,
    FunctionState,
    StateContent,
    handles_of_subtask,
)
from airflow_provider_statecheck.state.reading.state_reader import restored_keys
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.resolve import restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer, describe
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document

Claim = tuple[str, str, str]
"""Queryable name, uid of the function, and name of the state."""
OpenStorage = Callable[[str], CheckpointStorage]
"""
Opens the storage of a checkpoint by its pointer.

The pointers are those of the coordinator's rows. The storage may read the checkpoint and the files that it references.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStateAddress:
    """Address of the state of a range of key groups; Flink's server address is the pointer of a checkpoint here."""

    kv_state_id: str
    """Identifies the state of one subtask in one checkpoint."""
    pointer: str
    checkpoint_id: int
    completed_at: datetime | None = None
    content: StateContent
    """Schema, key type and handles, restricted to the key groups of the range."""


Registration = tuple[KeyGroupRange, KvStateAddress]
"""Key groups and address of a subtask."""


@dataclass(frozen=True, kw_only=True)
class KvStateLocation:
    """Addresses of all key groups of a queryable name."""

    job_id: JobId
    uid: str
    """Uid of the function, after the uid of its stage and ``/``."""
    name: str
    num_key_groups: int
    """The maximum parallelism of the operator."""
    addresses: tuple[KvStateAddress | None, ...]
    """Address of each key group; ``None`` where no state is registered."""

    def address_of(self, key_group: int) -> KvStateAddress:
        """
        Return the address of a key group.

        :raises UnknownKvStateKeyGroupLocationError: if no state is registered for the key group.
        :raises InvalidConfigurationError: for a key group out of bounds.
        """
        if not 0 <= key_group < self.num_key_groups:
            raise InvalidConfigurationError(
                f"Expected a key group from 0 to {self.num_key_groups - 1} of {self.name!r}, found {key_group}."
            )
        address = self.addresses[key_group]
        if address is None:
            raise UnknownKvStateKeyGroupLocationError(
                f"Expected state of {self.name!r} for each of {self.num_key_groups} key groups, found none for key "
                f"group {key_group}; repeat the query after the next checkpoint.",
                key_group=key_group,
            )
        return address

    @cached_property
    def first_address(self) -> KvStateAddress:
        """The address of the first registered key group; all addresses are of one checkpoint and one state."""
        return next(filter(None, self.addresses))

    @cached_property
    def key_serializer(self) -> KeySerializer:
        """
        The serializer of the keys.

        :raises UnsupportedStateError: if this release does not support the type of a key column.
        """
        return restored_keys(self.first_address.content.key)

    @cached_property
    def user_key_serializer(self) -> TypeSerializer[Any] | None:
        """
        The serializer of the keys of a map state; ``None`` for other states.

        :raises UnsupportedStateError: if this release does not support the type.
        """
        snapshot = self.first_address.content.schema.key
        return None if snapshot is None else restored_user_keys(snapshot)


class KvStateLocationRegistry:
    """
    Locations of the queryable states of one job: Flink's ``KvStateLocationRegistry``. Not safe for threads.

    :param operators: Number of key groups of each operator by uid; the owner may change the mapping.
    """

    def __init__(self, job_id: JobId, operators: dict[str, int]) -> None:
        self._job_id = job_id
        self.operators = operators
        self._entries: dict[str, _Entry] = {}
        self._locations: dict[str, KvStateLocation] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The registered names in the order of their registration."""
        return tuple(self._entries)

    def owner_of(self, name: str) -> str | None:
        """Return the uid of the operator that registered a name, or ``None``."""
        entry = self._entries.get(name)
        return None if entry is None else entry.uid

    def register(self, uid: str, key_groups: KeyGroupRange, name: str, address: KvStateAddress) -> None:
        """
        Register the state of a range of key groups, in place of an earlier registration of the same operator.

        :raises InvalidConfigurationError: for an unknown operator, or for key groups out of bounds.
        :raises DuplicateNameError: if another operator has registered the name.
        """
        self._require_key_groups(uid, key_groups)
        entry = self._entries.get(name) or _Entry(uid, [None] * self.operators[uid])
        if entry.uid != uid:
            raise DuplicateNameError(
                f"Expected each queryable name in one operator of a job, found {name!r} in {entry.uid!r} and in "
                f"{uid!r}; give one of the states another queryable_name.",
                name=name,
            )
        self._entries[name] = entry
        entry.addresses[key_groups.start : key_groups.end + 1] = [address] * len(key_groups)
        self._locations.pop(name, None)

    def unregister(self, uid: str, key_groups: KeyGroupRange, name: str) -> None:
        """
        Remove the registration of a range of key groups. A name without registrations vanishes.

        :raises InvalidConfigurationError: for an unknown name, a name of another operator, or key groups that are not
            registered.
        """
        entry = self._entries.get(name)
        if entry is None or entry.uid != uid or None in (registered := self._registered(entry, key_groups)):
            raise InvalidConfigurationError(
                f"Expected that {uid!r} has registered {name!r} for the key groups {key_groups.start} to "
                f"{key_groups.end}, found that it has not, because another call registered or unregistered it first."
            )
        entry.addresses[key_groups.start : key_groups.end + 1] = [None] * len(registered)
        self._locations.pop(name, None)
        if not any(entry.addresses):
            del self._entries[name]

    def location(self, name: str) -> KvStateLocation:
        """
        Return the location of a name.

        :raises UnknownKvStateLocationError: if the name is not registered; the message lists the names.
        """
        if name not in self._locations:
            self._locations[name] = self._built(name)
        return self._locations[name]

    def _built(self, name: str) -> KvStateLocation:
        entry = self._entries.get(name)
        if entry is None:
            found = ", ".join(map(repr, self._entries)) or "none"
            raise UnknownKvStateLocationError(
                f"Expected a state with the queryable name {name!r} in job {self._job_id}, found {found}; set "
                "queryable_name on its descriptor, and query it after the next checkpoint.",
                name=name,
            )
        return KvStateLocation(
            job_id=self._job_id,
            uid=entry.uid,
            name=name,
            num_key_groups=len(entry.addresses),
            addresses=tuple(entry.addresses),
        )

    @staticmethod
    def _registered(entry: _Entry, key_groups: KeyGroupRange) -> list[KvStateAddress | None]:
        found = entry.addresses[key_groups.start : key_groups.end + 1]
        return found if len(found) == len(key_groups) else [None]

    def _require_key_groups(self, uid: str, key_groups: KeyGroupRange) -> None:
        if uid not in self.operators:
            found = ", ".join(map(repr, self.operators)) or "none"
            raise InvalidConfigurationError(f"Expected an operator of job {self._job_id}: {found}; found {uid!r}.")
        if key_groups.end >= self.operators[uid]:
            raise InvalidConfigurationError(
                f"Expected key groups from 0 to {self.operators[uid] - 1} of {uid!r}, found {key_groups.start} to "
                f"{key_groups.end}."
            )


@dataclass(slots=True)
class _Entry:
    uid: str
    addresses: list[KvStateAddress | None]


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
        """What distinguishes the state from others that claim its queryable name."""
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
            expires=schema.expires,
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
        """Whether a state that was registered after ``open`` has a queryable name, as far as it is known."""
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
                content=replace(content, handles=handles_of_subtask(operator, index)),
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
    found = (each for record in records for each in _records_of_members(open_storage, record))
    return tuple(record for record in found if record.operator_id in known)


def _records_of_members(open_storage: OpenStorage, record: CheckpointRecord) -> Iterator[CheckpointRecord]:
    if not is_of_whole_job(record):
        yield record
        return
    storage = open_storage(record.location).allowing(record.location, record.metadata_uri)
    for member in load_document(storage, record).members:
        properties = replace(record.properties, member=member.uid)
        yield replace(record, operator_id=operator_id_of(member.uid), properties=properties)


@contextmanager
def _present(record: CheckpointRecord) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFoundError as error:
        raise UnknownKvStateIdError(
            f"Expected the files of checkpoint {record.checkpoint_id}, found them deleted, because newer checkpoints "
            f"replaced it; query the latest checkpoint.",
            checkpoint_id=record.checkpoint_id,
        ) from error
