"""The contract of completed checkpoints over each kind of rows."""

from __future__ import annotations

import pytest

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.contracts.completed_store_contract import CompletedCheckpointStoreContract


class TestSqlite(OnSqlite, CompletedCheckpointStoreContract):
    pass


class TestPostgres(OnPostgres, CompletedCheckpointStoreContract):
    pass


class TestSqliteOverHttp(OverHttp, OnSqlite, CompletedCheckpointStoreContract):
    pass


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestPostgresOverHttp(OverHttp, OnPostgres, CompletedCheckpointStoreContract):
    pass
