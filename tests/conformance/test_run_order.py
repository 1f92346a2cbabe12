"""The order of runs without a logical date over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.run_order_contract import RunOrderContract


class TestSqlite(OnSqlite, RunOrderContract): ...


class TestPostgres(OnPostgres, RunOrderContract): ...
