"""Reads that each client of queryable state offers, and the local client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack, overload

from airflow_provider_statecheck.checkpoint.ids import given_job_id
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    RequestLimitError,
    StateCheckError,
    UnknownKvStateIdError,
)
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.gateway.time_travel import AsOf
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.queryable.immutable_states import immutable_state
from airflow_provider_statecheck.queryable.json_values import json_of
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.opened_state import StateCache
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle, LatestRows
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy
from airflow_provider_statecheck.queryable.queries import (
    JsonUserKey,
    PythonKeys,
    QueryableName,
    StateQuery,
    StateReply,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.queryable.immutable_states import (
        ImmutableAggregatingState,
        ImmutableFoldingState,
        ImmutableListState,
        ImmutableMapState,
        ImmutableReducingState,
        ImmutableValueState,
    )
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )


T = TypeVar("T")
V = TypeVar("V")
Acc = TypeVar("Acc")

KEYS_PER_REQUEST: Final = 1_000
"""Maximum number of keys of one request."""
_ROUNDS = 5
"""How often a batch starts over because its checkpoint was subsumed between two requests."""
_SUBSUMED = (CheckpointNotFoundError, UnknownKvStateIdError)


class CheckpointChoice(TypedDict, total=False):
    """The checkpoint to read, by default the latest completed one; at most one of these is given."""

    checkpoint_id: int | None
    pointer: str | None
    """Pointer of a retained checkpoint or savepoint of the job."""
    at: datetime | None
    """Time with a time zone; the checkpoint that was the latest completed one at that time is read."""


class ReadOptions(CheckpointChoice, TypedDict, total=False):
    """Options of a read: the checkpoint, and the namespace of the state."""

    namespace: str


def several(keys: Iterable[Any]) -> tuple[Any, ...]:
    """
    Return the keys of a read of several keys.

    :raises InvalidConfigurationError: for a single text, whose characters would be the keys.
    """
    if isinstance(keys, str | bytes):
        raise InvalidConfigurationError(f"Expected several keys, found the single key {keys!r:.60}; pass it in a list.")
    return tuple(keys)


def query_of(
    job: str, name: str, keys: Iterable[Any], user_key: Any = None, *, namespace: str = "", **checkpoint: Any
) -> StateQuery:
    """
    Return the query of a read.

    :raises InvalidConfigurationError: if the checkpoint is given in more than one way.
    :raises UnsupportedStateError: if no map can have the user key.
    """
    return StateQuery(
        job_id=given_job_id(job),
        name=name,
        keys=PythonKeys(tuple(keys)),
        namespace=namespace,
        user_key=None if user_key is None else JsonUserKey(json_of(user_key)),
        as_of=AsOf(**checkpoint),
    )


def in_batches(query: StateQuery, parts: Iterable[tuple[Any, ...]]) -> Generator[StateQuery, StateReply, StateReply]:
    """
    Read many keys by several queries, all of one checkpoint.

    The caller sends the reply to each query, or throws its error. The reply to the first query decides the checkpoint.
    If it is subsumed before the last query, the batch starts over with the latest checkpoint, several times. The keys
    of a query that is too large, or whose answer is, are split in halves.

    :param query: The query, whose keys are replaced.
    :param parts: The keys of each query.
    :return: The reply with all keys.
    """
    left, rounds = list(parts), _ROUNDS
    while True:
        replies, as_of = list[StateReply](), query.as_of
        rounds -= 1
        try:
            while len(replies) < len(left):
                part = left[len(replies)]
                try:
                    replies.append((yield replace(query, keys=PythonKeys(part), as_of=as_of)))
                except RequestLimitError as error:
                    if error.retry_after_seconds is not None or len(part) < 2:
                        raise
                    half = len(part) // 2
                    left[len(replies) : len(replies) + 1] = part[:half], part[half:]
                as_of = AsOf(checkpoint_id=replies[0].checkpoint_id) if replies else as_of
        except _SUBSUMED:
            if not (replies and rounds and query.as_of.is_latest):
                raise
        else:
            return _joined(replies)


def _joined(replies: Sequence[StateReply]) -> StateReply:
    keys = tuple(key for reply in replies for key in reply.keys)
    return replace(replies[0], keys=keys, values=tuple(value for reply in replies for value in reply.values))


class StateReads(ABC):
    """
    Reads of the queryable state of jobs.

    A job is given by its name or by its id of 32 hexadecimal digits, and a state by its queryable name, which is
    ``name[map_key]`` for an instance of a mapped task. A read addresses the latest completed checkpoint unless
    ``options`` choose another one, and never changes state.
    """

    @abstractmethod
    def ask(self, query: StateQuery) -> StateReply:
        """
        Return the reply to a query with Python keys.

        :raises CheckpointNotFoundError: if the job or the checkpoint does not exist.
        :raises UnknownKvStateLocationError: if no state is registered under the name.
        :raises UnsupportedStateError: if a key does not fit its type.
        """

    @abstractmethod
    def names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        """
        Return the queryable states of a job with their types, first the served and then the refused ones.

        :raises CheckpointNotFoundError: if the job or the checkpoint does not exist.
        """

    def get(self, job: str, name: str, key: Any, *, user_key: Any = None, **options: Unpack[ReadOptions]) -> StateReply:
        """
        Return the reply for one key, whose ``value`` is the value.

        Records are dictionaries, enum members are their names, and values of user-defined serializers are bytes;
        :meth:`get_kv_state` returns objects of the user's classes.

        :param job: Name or id of the job.
        :param name: Queryable name of the state.
        :param key: The key; a tuple for a key of several columns.
        :param user_key: Key of one entry of a map state; without it, the value is the whole map.
        :param options: The namespace, and the checkpoint.
        :raises UnknownKeyOrNamespaceError: if the key has no state.
        :raises StateCheckError: as :meth:`ask`.
        """
        return self.ask(query_of(job, name, (key,), user_key, **options)).present()

    def get_many(
        self, job: str, name: str, keys: Iterable[Any], *, user_key: Any = None, **options: Unpack[ReadOptions]
    ) -> StateReply:
        """
        Return the reply for many keys; its ``found`` maps the keys that have state to their values.

        All values are from one checkpoint. Requests have up to 1,000 keys each, and fewer if they or the answers are
        large. If the checkpoint of the first one is subsumed before the last one, the read starts over with the latest
        checkpoint, up to five times.

        :param keys: The keys; ``keys`` of the reply has them in the same order, in normal form.
        :raises CheckpointNotFoundError: if each checkpoint was subsumed during the read, too.
        :raises InvalidConfigurationError: if the keys are a single text.
        :raises RequestLimitError: if a single key or its value is too large.
        :raises StateCheckError: as :meth:`ask`.
        """
        query = query_of(job, name, (), user_key, **options)
        batches = in_batches(query, self._parts(query, several(keys)))
        try:
            query = next(batches)
            while True:
                try:
                    reply = self.ask(query)
                except StateCheckError as error:
                    query = batches.throw(error)
                else:
                    query = batches.send(reply)
        except StopIteration as done:
            joined: StateReply = done.value
            return joined

    def _parts(self, query: StateQuery, keys: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
        """Return the keys of each request."""
        return (keys[i : i + KEYS_PER_REQUEST] for i in range(0, len(keys) or 1, KEYS_PER_REQUEST))

    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ValueStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableValueState[T]: ...
    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ListStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableListState[T]: ...
    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ReducingStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableReducingState[T]: ...
    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: AggregatingStateDescriptor[Any], **options: Unpack[ReadOptions]
    ) -> ImmutableAggregatingState[Any, Any]: ...
    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: FoldingStateDescriptor[Acc], **options: Unpack[ReadOptions]
    ) -> ImmutableFoldingState[Any, Acc]: ...
    @overload
    def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: MapStateDescriptor[V], **options: Unpack[ReadOptions]
    ) -> ImmutableMapState[Any, V]: ...
    def get_kv_state(self, job: str, name: str, key: Any, descriptor: Any, **options: Unpack[ReadOptions]) -> Any:
        """
        Return the state of one key as an immutable state, which reads like the state in the stage.

        :param descriptor: Descriptor of the state, as in the stage; only its own serializer creates objects of classes.
        :raises UnknownKeyOrNamespaceError: if the key has no state, also if the descriptor has a default.
        :raises InvalidConfigurationError: if the descriptor has another kind than the state.
        :raises StateMigrationError: if the types of the descriptor cannot restore the state.
        :raises StateCheckError: as :meth:`ask`.
        """
        return immutable_state(self.get(job, name, key, **options), descriptor)


class LocalStateClient(StateReads):
    """
    Reads of queryable state in this process. Safe for threads.

    A key that was read before is read from memory as long as the job has no newer checkpoint.

    .. code-block:: python

        client = LocalStateClient.open("sqlite:///state.db")
        total = client.get("sales", "totals", "user-7").value

    :param rows: Rows of jobs: a gateway to the coordinator, such as ``StatecheckHook().get_conn()``.
    :param open_storage: Opens the storage of a checkpoint by its pointer.
    :param cache: Indexes and blocks in memory, by default with the default bounds.
    """

    def __init__(self, rows: LatestRows, open_storage: OpenStorage, cache: StateCache | None = None) -> None:
        oracle_of = partial(CheckpointLocationOracle, rows=rows, open_storage=open_storage)
        self._proxy = StateProxy(KvStateServer(open_storage, cache), oracle_of)

    @classmethod
    def open(cls, metadata: str, storage_options: Mapping[str, Any] | None = None) -> Self:
        """
        Return a client of the jobs in a database of the coordinator.

        :param metadata: SQLAlchemy URL, such as ``sqlite:///state.db``.
        :param storage_options: Options of the filesystem of the checkpoints.
        """
        options = dict(storage_options or {})
        return cls(open_gateway(metadata), lambda pointer: CheckpointStorage.open(pointer, **options))

    @override
    def ask(self, query: StateQuery) -> StateReply:
        return self._proxy.get(query)

    @override
    def names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        return self._proxy.names(given_job_id(job), AsOf(**checkpoint))
