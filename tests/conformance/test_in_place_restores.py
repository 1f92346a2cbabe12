"""The contract of restores in place over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.in_place_restore_contract import InPlaceRestoreContract


class TestSqlite(OnSqlite, InPlaceRestoreContract): ...


class TestPostgres(OnPostgres, InPlaceRestoreContract): ...
