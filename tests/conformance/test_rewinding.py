"""The contract of rewinding over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.rewinding_contract import RewindingContract


class TestSqlite(OnSqlite, RewindingContract): ...


class TestPostgres(OnPostgres, RewindingContract): ...
