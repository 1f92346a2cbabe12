"""A savepoint of a whole job that a maintenance task takes, whose rows are on a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, RequestStatus
from airflow_provider_statecheck.exceptions import StoppedWithSavepointError
from airflow_provider_statecheck.gateway.http import HttpCalls, HttpClient, HttpGateway
from airflow_provider_statecheck.maintenance.actions import MAINTENANCE, SAVEPOINTS
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from airflow_provider_statecheck.testing.faults import WRITING_CALLS, FaultMode, InProcessPlan, Killed, faulty_storage
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import ApiProcess, ClaimedTask, OverHttp
from tests.messages import ManualClock
from tests.unit.written_stage import JOB, WrittenStage


class JobSavepointsOverHttp(OverHttp):
    @pytest.fixture
    def service(self, api: ApiProcess, rows: Any, tmp_path: Path) -> WholeJobSavepoints:
        client = HttpClient(api.url)
        task = ClaimedTask(client)
        maintenance: Any = HttpCalls(MAINTENANCE, client, task)
        savepoints: Any = HttpCalls(SAVEPOINTS, client, task)
        return WholeJobSavepoints(
            rows=rows,
            maintenance=maintenance,
            savepoints=savepoints,
            open_storage=CheckpointStorage.open,
            directory=f"file://{tmp_path}/savepoints",
        )

    @pytest.fixture
    def stage(self, engine: Engine, clock: ManualClock, tmp_path: Path) -> WrittenStage:
        return WrittenStage(CheckpointStorage.open(f"{tmp_path}/checkpoints"), clock, SqlJobStore(engine, clock))

    def test_it_is_requested_awaited_and_taken(
        self, service: WholeJobSavepoints, stage: WrittenStage, clock: ManualClock, tmp_path: Path
    ) -> None:
        running, key = stage.attempt(), new_key()
        service.request(service.maintenance.describe(job_id_of(JOB)), request_key=key)
        assert service.take(job_id_of(JOB)) == ("aggregate",)
        clock.advance(1)
        taken = stage.take(running, stage.snapshot(running, "orders"))
        request, awaited = service.wait_for(job_id_of(JOB), key, 0)
        assert (request.status, awaited) == (RequestStatus.COMPLETED, ())
        savepoint = service.maintenance.checkpoint(job_id_of(JOB), request.checkpoint_id or 0)
        assert savepoint is not None
        document = load_document(CheckpointStorage.open(f"{tmp_path}/savepoints"), savepoint)
        assert [(member.uid, member.checkpoint_id) for member in document.members] == [
            ("aggregate", taken.checkpoint_id)
        ]

    @pytest.mark.parametrize("kind", [CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE])
    def test_a_job_stops_with_it(
        self,
        service: WholeJobSavepoints,
        api: ApiProcess,
        stage: WrittenStage,
        clock: ManualClock,
        kind: CheckpointType,
    ) -> None:
        client = HttpClient(api.url)
        stage.coordinator = HttpGateway(client, ClaimedTask(client))  # type: ignore[assignment]
        job_id, key = job_id_of(JOB), new_key()
        running = stage.attempt(driver={"pause": lambda _: service.take(job_id)})
        service.request(service.maintenance.describe(job_id), kind=kind, request_key=key)
        clock.advance(1)
        if kind is CheckpointType.SAVEPOINT_SUSPEND:
            with pytest.raises(StoppedWithSavepointError) as stopped:
                stage.take(running, stage.snapshot(running, "orders"))
            running.fail(stopped.value)
        else:
            stage.take(running, stage.snapshot(running, "orders"))
            assert service.take(job_id) == ("aggregate",)
            running.finish(AttemptStatus.FINISHED)
        request, awaited = service.wait_for(job_id, key, 0)
        assert (request.status, awaited) == (RequestStatus.COMPLETED, ())
        savepoint = service.maintenance.checkpoint(job_id, request.checkpoint_id or 0)
        assert savepoint is not None
        assert savepoint.properties.snapshot_type is kind

    def test_a_request_whose_process_ended_while_it_triggered_begins_another_checkpoint(
        self, service: WholeJobSavepoints, stage: WrittenStage, clock: ManualClock
    ) -> None:
        ended, job_id = stage.attempt(uid="extract"), job_id_of(JOB)
        stage.take(ended, stage.snapshot(ended, "rows"))
        ended.finish(AttemptStatus.FINISHED)
        running, key = stage.attempt(), new_key()
        plan = InProcessPlan(point=1, mode=FaultMode.KILL)
        ending = replace(
            service, open_storage=lambda uri: faulty_storage(CheckpointStorage.open(uri), plan, WRITING_CALLS)
        )
        with pytest.raises(Killed):
            ending.request(service.maintenance.describe(job_id), request_key=key)
        clock.advance(120)  # another process leads when the one that triggers has been silent for a minute
        service.take(job_id)
        assert service.take(job_id) == ("aggregate",)
        stage.take(running, stage.snapshot(running, "orders"))
        request, awaited = service.wait_for(job_id, key, 0)
        assert (request.status, awaited) == (RequestStatus.COMPLETED, ())
        begun = [c for c in service.maintenance.describe(job_id).checkpoints if c.operator_id == ALIGNED_OPERATOR_ID]
        assert [c.status for c in begun] == [CheckpointStatus.ABORTED, CheckpointStatus.COMPLETED]


class TestSqlite(OnSqlite, JobSavepointsOverHttp): ...


class TestPostgres(OnPostgres, JobSavepointsOverHttp): ...
