"""
Proxy of queryable state, which looks up where a key is, and state server, which reads it.

A location may be stale: a newer checkpoint subsumes the old one, whose files are deleted. The proxy then looks the
location up again and repeats the query, so a reader gets the newer value and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from airflow_provider_statecheck.cached_reads import LruCache, about_to_wait
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StateCheckError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.queryable.locations import KvStateAddress, KvStateLocation, OpenStorage
from airflow_provider_statecheck.queryable.opened_state import KeyInGroup, OpenedState, StateCache
from airflow_provider_statecheck.queryable.oracle import KvStateLocationOracle
from airflow_provider_statecheck.queryable.queries import QueryableName, StateQuery, StateReply, ValueLimit
from airflow_provider_statecheck.state.arrow.run_files import RunBytes
from airflow_provider_statecheck.storage.failures import RetryPolicy

MAX_ORACLES: Final = 200
"""
Number of jobs whose locations a proxy knows at once.

Each costs the decoded ``_metadata`` of the newest checkpoint of each stage. A job that is queried at earlier
checkpoints also costs its rows and the earlier ``_metadata``, see
:data:`~airflow_provider_statecheck.queryable.oracle.MAX_EARLIER`.
"""
_BYTES_OF_ORACLE: Final = 64 * 1024
"""Size of the metadata for which an oracle counts as another one; decoded, it takes ten times as much or more."""
RETRIES: Final = RetryPolicy(attempts=4, first_pause_seconds=0.05, longest_pause_seconds=1.0, deadline_seconds=10.0)
"""
Three retries. No retry begins more than ten seconds after the query.

A retry that reads a newer checkpoint than the one before is not counted.
"""

OracleFactory = Callable[[JobId], KvStateLocationOracle]
_STALE = (
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    CoordinatorUnavailableError,
)


class KvStateClientProxy(Protocol):
    """
    Proxy that clients connect to: Flink's ``KvStateClientProxy``.

    Its calls may come from several threads at once.
    """

    def update_kv_state_location_oracle(self, job_id: JobId, oracle: KvStateLocationOracle | None) -> None:
        """
        Set the oracle of a job. The last call wins, and other threads see it at once.

        :param oracle: The oracle; ``None`` removes it.
        :raises InvalidConfigurationError: for an empty job id.
        """

    def get_kv_state_location_oracle(self, job_id: JobId) -> KvStateLocationOracle | None:
        """Return the oracle of a job, or ``None``."""


class KvStateServer:
    """
    Reads keys at an address. Of a file, only the blocks of the requested keys are read.

    Safe for threads. Several servers may share a cache.

    :param cache: Opened states and blocks, by default with the default bounds.
    """

    def __init__(self, open_storage: OpenStorage, cache: StateCache | None = None) -> None:
        self._open_storage = open_storage
        self._cache = cache or StateCache()

    def read(
        self,
        address: KvStateAddress,
        keys: Sequence[KeyInGroup],
        namespace: str = "",
        user_key: Any = None,
        limit: ValueLimit | None = None,
    ) -> list[Any]:
        """
        Return the value of each key, :data:`ABSENT` for a key without one.

        Expiry is decided by the time of the checkpoint.

        Values need no class of the user: a record is a dictionary, an enum member its name, and the value of a custom
        serializer bytes. A map is a dictionary, and the value of an aggregating state its accumulator.

        :param keys: Keys in normal form with their key groups; the address covers all of these key groups.
        :param user_key: Key of the map entry to return; ``None`` for all entries.
        :param limit: Limit that counts the values; by default they may have any size.
        :raises RequestLimitError: if the values are above the limit.
        :raises UnknownKvStateIdError: if the files of the checkpoint are gone.
        :raises InvalidConfigurationError: if there is a user key, but the state is no map.
        :raises UnsupportedStateError: if the user key does not fit its type, or this release does not support a type.
        :raises LocationNotAllowedError: if a file is not in an allowed location.
        :raises CorruptStateError: if a file is corrupt.
        :raises IncompatibleCheckpointError: if a newer version wrote a file.
        :raises StorageError: if the storage fails.
        """
        try:
            state = self._cache.state_at(address, lambda: self._opened(address))
            return state.read(keys, namespace, user_key, limit)
        except CheckpointNotFoundError as error:
            raise UnknownKvStateIdError(
                f"Expected the state files of checkpoint {address.checkpoint_id} at {address.pointer}, found that they "
                "are deleted; look the location up again, because a newer checkpoint may have replaced it.",
                kv_state_id=address.kv_state_id,
            ) from error

    def _opened(self, address: KvStateAddress) -> OpenedState:
        storage = self._open_storage(address.pointer)
        return OpenedState(address.content, storage, RunBytes(storage, self._cache.files), self._cache.blocks)


class StateProxy:
    """
    Answers queries from the latest completed checkpoints, or from earlier ones. Safe for threads.

    :param create_oracle: Creates the oracle of a job at its first query; without it, only jobs with an oracle from
        :meth:`update_kv_state_location_oracle` are known.
    :param max_oracles: Number of created oracles; the least recently used ones are forgotten. One counts as several if
        the metadata of its checkpoints is large.
    :param retries: Bounds and pauses of the retries of a query.
    """

    def __init__(
        self,
        server: KvStateServer,
        create_oracle: OracleFactory | None = None,
        *,
        max_oracles: int = MAX_ORACLES,
        retries: RetryPolicy = RETRIES,
    ) -> None:
        self._server = server
        self._create_oracle = create_oracle
        self._given: dict[JobId, KvStateLocationOracle] = {}
        self._created = LruCache[JobId, KvStateLocationOracle](
            max_oracles, lambda oracle: 1 + oracle.metadata_bytes // _BYTES_OF_ORACLE
        )
        self._retries = retries

    def update_kv_state_location_oracle(self, job_id: JobId, oracle: KvStateLocationOracle | None) -> None:
        """Set or remove the oracle of a job; see :meth:`KvStateClientProxy.update_kv_state_location_oracle`."""
        _require_job_id(job_id)
        self._created.remove(job_id)
        if oracle is None:
            self._given.pop(job_id, None)
        else:
            self._given[job_id] = oracle

    def get_kv_state_location_oracle(self, job_id: JobId) -> KvStateLocationOracle | None:
        """Return the oracle of a job, or ``None`` if it has none yet."""
        _require_job_id(job_id)
        return self._given.get(job_id) or self._created.get(job_id)

    def get(self, query: StateQuery) -> StateReply:
        """
        Return the values of the keys of a query, all from one checkpoint.

        :raises UnknownLocationError: if the job has no oracle.
        :raises CheckpointNotFoundError: if the job or the checkpoint does not exist.
        :raises UnknownKvStateLocationError: if no state is registered under the name.
        :raises InvalidConfigurationError: if a key has no value for a column, or for a user key of a state without one.
        :raises UnsupportedStateError: if a key does not fit its type.
        :raises RequestLimitError: if the values are larger than the query allows.
        :raises StateCheckError: the last error, if the locations stay stale, or if rows or storage fail.
        """
        reads = _Reads(self._retries)
        while True:
            try:
                with self._measured(query.job_id):
                    return self._answer(query, reads)
            except StateCheckError as error:
                reads.failed(error)

    def names(self, job_id: JobId, as_of: AsOf = LATEST) -> tuple[QueryableName, ...]:
        """
        Return the queryable states of a job, first the served and then the refused ones.

        :raises UnknownLocationError: if the job has no oracle.
        :raises CheckpointNotFoundError: if the job or the checkpoint does not exist.
        :raises CoordinatorUnavailableError: if the rows of the job cannot be read.
        """
        with self._measured(job_id):
            return self._oracle(job_id).names(as_of=as_of)

    @contextmanager
    def _measured(self, job_id: JobId) -> Iterator[None]:
        # An oracle holds what the last call has read.
        try:
            yield
        finally:
            self._created.measure(job_id)

    def _answer(self, query: StateQuery, reads: _Reads) -> StateReply:
        location = self._oracle(query.job_id).request_kv_state_location(
            query.name, as_of=query.as_of, refresh=reads.refresh
        )
        address = location.first_address
        reads.checkpoint_id = address.checkpoint_id
        keys = query.keys.decoded(location.key_serializer)
        user_key = None if query.user_key is None else query.user_key.decoded(_user_keys(location))
        return StateReply(
            job_id=query.job_id,
            name=query.name,
            uid=location.uid,
            checkpoint_id=address.checkpoint_id,
            pointer=address.pointer,
            completed_at=address.completed_at,
            schema=address.content.schema,
            key=address.content.key,
            is_entry=query.user_key is not None,
            keys=keys,
            values=self._values(location, keys, query, user_key),
        )

    def _values(
        self, location: KvStateLocation, keys: tuple[Any, ...], query: StateQuery, user_key: Any
    ) -> tuple[Any, ...]:
        options = query.namespace, user_key, ValueLimit(query.max_value_bytes)
        if len(keys) == 1:
            key_group = _key_group_of(location, keys[0])
            return tuple(self._server.read(location.address_of(key_group), ((keys[0], key_group),), *options))
        values: dict[int, Any] = {}
        for address, places in _by_address(location, keys):
            wanted = [(keys[place], key_group) for place, key_group in places]
            found = self._server.read(address, wanted, *options)
            values.update(zip((place for place, _ in places), found, strict=True))
        return tuple(values[place] for place in range(len(keys)))

    def _oracle(self, job_id: JobId) -> KvStateLocationOracle:
        known = self.get_kv_state_location_oracle(job_id)
        if known is not None:
            return known
        create = self._create_oracle
        if create is None:
            raise UnknownLocationError(
                f"Expected an oracle for the job {job_id}, found none; pass one to update_kv_state_location_oracle."
            )
        return self._created.get_or_load(job_id, lambda: create(job_id))


class _Reads:
    """Reads of one query."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._started = policy.monotonic()
        self._counted = 0
        self._failed_at: int | None = None
        self.checkpoint_id: int | None = None
        """Checkpoint of the location of the current read."""
        self.refresh = False
        """Whether the next read must look the location up again."""

    def failed(self, error: StateCheckError) -> None:
        """Pause before the next read; raise the error if there is none."""
        if not self._may_be_stale(error):
            raise error
        found = vars(error).get("checkpoint_id", self.checkpoint_id)
        progressed = self._failed_at is not None and found != self._failed_at
        self._failed_at, self.refresh = found, True
        self._counted += not progressed
        # The first repetition looks the location up again, which needs no pause.
        pause = 0.0 if progressed or self._counted == 1 else self._policy.pause_after(self._counted - 1)
        elapsed = self._policy.monotonic() - self._started
        if self._counted >= self._policy.attempts or elapsed + pause > self._policy.deadline_seconds:
            raise error
        if pause:
            about_to_wait()
            self._policy.sleep(pause)

    def _may_be_stale(self, error: StateCheckError) -> bool:
        # A name that is unknown after a refresh is unknown in the newest checkpoint.
        is_settled = self.refresh and isinstance(error, UnknownKvStateLocationError)
        # The storage has retried its own failures before it raises them.
        return isinstance(error, _STALE) and not is_settled


def _by_address(
    location: KvStateLocation, keys: tuple[Any, ...]
) -> Iterator[tuple[KvStateAddress, list[tuple[int, int]]]]:
    """Yield the addresses of keys, each with the places and key groups of its keys."""
    places: dict[int, list[tuple[int, int]]] = {}
    addresses: dict[int, KvStateAddress] = {}
    for place, key in enumerate(keys):
        key_group = _key_group_of(location, key)
        address = location.address_of(key_group)
        addresses[id(address)] = address
        places.setdefault(id(address), []).append((place, key_group))
    return ((addresses[each], found) for each, found in places.items())


def _key_group_of(location: KvStateLocation, key: Any) -> int:
    return location.key_serializer.key_group_of_normalized(key, location.num_key_groups)


def _user_keys(location: KvStateLocation) -> Any:
    serializer = location.user_key_serializer
    if serializer is None:
        raise InvalidConfigurationError(f"Expected no user key, because {location.name!r} is not a map state; omit it.")
    return serializer


def _require_job_id(job_id: JobId) -> None:
    if not job_id:
        raise InvalidConfigurationError(f"Expected the id of a job, found {job_id!r}; pass job_id_of(name).")
