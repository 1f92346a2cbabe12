"""Client of queryable state without a server, on the rows of jobs and the checkpoint storage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self, Unpack

from typing_extensions import override

from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle, LatestRows
from airflow_provider_statecheck.queryable.proxy import StateProxy
from airflow_provider_statecheck.queryable.queries import AsOf, QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.queryable.reads import CheckpointChoice, StateReads, given_job_id
from airflow_provider_statecheck.queryable.server import KvStateServer
from airflow_provider_statecheck.queryable.state_cache import StateCache
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


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
        """Return the reply to a query; raises as ``StateReads.ask``."""
        return self._proxy.get(query)

    @override
    def names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        """Return the queryable states of a job; raises as ``StateReads.names``."""
        return self._proxy.names(given_job_id(job), AsOf(**checkpoint))
