"""The contract of state handles over each kind of rows."""

from __future__ import annotations

import pytest

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.contracts.state_handle_store_contract import StateHandleStoreContract


class TestSqlite(OnSqlite, StateHandleStoreContract):
    pass


class TestPostgres(OnPostgres, StateHandleStoreContract):
    pass


class TestSqliteOverHttp(OverHttp, OnSqlite, StateHandleStoreContract):
    pass


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestPostgresOverHttp(OverHttp, OnPostgres, StateHandleStoreContract):
    pass
