"""The contracts of the rows of jobs over each store, and those of several operators also over HTTP."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.overriding import override
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.contracts.actions_contract import ActionsContract
from tests.contracts.completed_store_contract import CompletedCheckpointStoreContract
from tests.contracts.in_place_restore_contract import InPlaceRestoreContract, RestoredStagesContract
from tests.contracts.job_list_contract import JobListContract
from tests.contracts.rewinding_contract import RewindingContract
from tests.contracts.savepoint_contract import SavepointContract
from tests.contracts.state_handle_store_contract import StateHandleStoreContract
from tests.contracts.statistics_contract import StatisticsContract
from tests.messages import ManualClock


class TestActionsOnSqlite(OnSqlite, ActionsContract): ...


class TestActionsOnPostgres(OnPostgres, ActionsContract): ...


class TestInPlaceRestoresOnSqlite(OnSqlite, InPlaceRestoreContract): ...


class TestInPlaceRestoresOnPostgres(OnPostgres, InPlaceRestoreContract): ...


class TestRestoredStagesOnSqlite(OnSqlite, RestoredStagesContract): ...


class TestRestoredStagesOnPostgres(OnPostgres, RestoredStagesContract): ...


class TestJobListOnSqlite(OnSqlite, JobListContract): ...


class TestJobListOnPostgres(OnPostgres, JobListContract): ...


class TestRewindingOnSqlite(OnSqlite, RewindingContract): ...


class TestRewindingOnPostgres(OnPostgres, RewindingContract): ...


class TestSavepointsOnSqlite(OnSqlite, SavepointContract): ...


class TestSavepointsOnPostgres(OnPostgres, SavepointContract): ...


class TestStatisticsOnSqlite(OnSqlite, StatisticsContract): ...


class TestStatisticsOnPostgres(OnPostgres, StatisticsContract):
    @pytest.mark.soak  # its hundreds of checkpoints take long, and the row is as large as on SQLite
    @override
    def test_the_row_stays_small_whatever_is_told(self, clock: ManualClock) -> None:
        super().test_the_row_stays_small_whatever_is_told(clock)


class TestCompletedStoreOnSqlite(OnSqlite, CompletedCheckpointStoreContract): ...


class TestCompletedStoreOnPostgres(OnPostgres, CompletedCheckpointStoreContract): ...


class TestCompletedStoreOverHttpOnSqlite(OverHttp, OnSqlite, CompletedCheckpointStoreContract): ...


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestCompletedStoreOverHttpOnPostgres(OverHttp, OnPostgres, CompletedCheckpointStoreContract): ...


class TestStateHandlesOnSqlite(OnSqlite, StateHandleStoreContract): ...


class TestStateHandlesOnPostgres(OnPostgres, StateHandleStoreContract): ...


class TestStateHandlesOverHttpOnSqlite(OverHttp, OnSqlite, StateHandleStoreContract): ...


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestStateHandlesOverHttpOnPostgres(OverHttp, OnPostgres, StateHandleStoreContract): ...
