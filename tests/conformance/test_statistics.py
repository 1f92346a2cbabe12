"""The contract of statistics over each store."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.overriding import override
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.statistics_contract import StatisticsContract
from tests.messages import ManualClock


class TestSqlite(OnSqlite, StatisticsContract): ...


class TestPostgres(OnPostgres, StatisticsContract):
    @pytest.mark.soak  # its hundreds of checkpoints take long, and the row is as large as on SQLite
    @override
    def test_the_row_stays_small_whatever_is_told(self, clock: ManualClock) -> None:
        super().test_the_row_stays_small_whatever_is_told(clock)
