"""The contract of actions of users over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.actions_contract import ActionsContract


class TestSqlite(OnSqlite, ActionsContract): ...


class TestPostgres(OnPostgres, ActionsContract): ...
