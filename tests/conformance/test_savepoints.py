"""The contract of savepoints over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.savepoint_contract import SavepointContract


class TestSqlite(OnSqlite, SavepointContract): ...


class TestPostgres(OnPostgres, SavepointContract): ...
