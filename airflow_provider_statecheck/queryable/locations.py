"""
Locations of queryable state: which checkpoint holds the state of a name and a key group.

The rules of registration are Flink's. A name belongs to the first operator that registers it, and a second operator is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import (
    DuplicateNameError,
    InvalidConfigurationError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.state_reader import restored_keys
from airflow_provider_statecheck.state.serializers.resolve import restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

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
                f"Expected state of {self.name!r} for each of {self.num_key_groups} key groups, found none for key group "
                f"{key_group}; repeat the query after the next checkpoint.",
                key_group=key_group,
            )
        return address

    @cached_property
    def first_address(self) -> KvStateAddress:
        """Return the address of the first registered key group; all addresses are of one checkpoint and one state."""
        return next(filter(None, self.addresses))

    @cached_property
    def key_serializer(self) -> KeySerializer:
        """
        Return the serializer of the keys.

        :raises UnsupportedStateError: if this release does not support the type of a key column.
        """
        return restored_keys(self.first_address.content.key)

    @cached_property
    def user_key_serializer(self) -> TypeSerializer[Any] | None:
        """
        Return the serializer of the keys of a map state; ``None`` for other states.

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
        """Return the registered names in the order of their registration."""
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
                f"Expected each queryable name in one operator of a job, found {name!r} in {entry.uid!r} and in {uid!r}; "
                f"give one of the states another queryable_name.",
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
                f"Expected that {uid!r} has registered {name!r} for the key groups {key_groups.start} to {key_groups.end}, "
                f"found that it has not, because another call registered or unregistered it first."
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
                f"Expected a state with the queryable name {name!r} in job {self._job_id}, found {found}; set queryable_name "
                f"on its descriptor, and query it after the next checkpoint.",
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
