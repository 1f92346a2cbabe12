"""The contract of the list of jobs over each store."""

from __future__ import annotations

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.job_list_contract import JobListContract


class TestSqlite(OnSqlite, JobListContract): ...


class TestPostgres(OnPostgres, JobListContract): ...
