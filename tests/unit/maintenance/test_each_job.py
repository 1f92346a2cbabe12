"""Maintenance of many jobs side by side: reports in order, and no job that stops or delays the others."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import AccessDeniedError, CoordinatorUnavailableError
from airflow_provider_statecheck.maintenance.gc import CollectedJob, JobReport, collect_job
from airflow_provider_statecheck.maintenance.job_maintenance import SIDE_BY_SIDE, each_job
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import WrittenStage

JOBS = [job_id_of(f"job {number}") for number in range(3 * SIDE_BY_SIDE)]
_PATIENCE_SECONDS = 30


def test_jobs_are_worked_on_at_the_same_time_and_reported_in_order() -> None:
    together = threading.Barrier(SIDE_BY_SIDE)
    first_is_done = threading.Event()

    def work(job_id: JobId) -> JobReport:
        together.wait(_PATIENCE_SECONDS)
        # The first job of all ends last.
        if job_id == JOBS[0]:
            assert first_is_done.wait(_PATIENCE_SECONDS)
        elif job_id == JOBS[1]:
            first_is_done.set()
        return JobReport(job=job_id)

    jobs = JOBS[:SIDE_BY_SIDE]
    reports = list(each_job(jobs, work, JobReport, side_by_side=SIDE_BY_SIDE))
    assert [report.job for report in reports] == jobs


def test_no_more_jobs_than_allowed_are_worked_on_at_the_same_time() -> None:
    free, most = threading.Semaphore(2), []

    def work(job_id: JobId) -> JobReport:
        most.append(free.acquire(blocking=False))
        free.release()
        return JobReport(job=job_id)

    assert len(list(each_job(JOBS, work, JobReport, side_by_side=2))) == len(JOBS)
    assert all(most)


def test_job_with_an_error_of_any_kind_stops_no_other_one() -> None:
    def work(job_id: JobId) -> JobReport:
        if JOBS.index(job_id) % 2:
            raise RuntimeError("bad")
        return JobReport(job=job_id)

    reports = list(each_job(JOBS, work, JobReport, side_by_side=SIDE_BY_SIDE))
    assert [bool(report.problems) for report in reports] == [bool(n % 2) for n in range(len(JOBS))]


def test_caller_without_the_right_begins_no_further_jobs() -> None:
    begun: list[JobId] = []

    def work(job_id: JobId) -> JobReport:
        begun.append(job_id)
        raise AccessDeniedError("Expected a token of maintenance, found none.")

    with pytest.raises(AccessDeniedError):
        list(each_job(JOBS * 100, work, JobReport, side_by_side=1))
    assert len(begun) == 1


def test_coordinator_that_does_not_answer_is_not_asked_for_every_job() -> None:
    asked: list[JobId] = []

    def work(job_id: JobId) -> JobReport:
        asked.append(job_id)
        raise CoordinatorUnavailableError("Expected an answer, found none.")

    reports = list(each_job(JOBS, work, JobReport, side_by_side=SIDE_BY_SIDE))
    assert len(asked) < 3 + SIDE_BY_SIDE
    assert all(report.unreachable for report in reports)
    assert [report.job for report in reports] == JOBS


def test_jobs_collected_side_by_side_lose_what_each_loses_alone(stage: WrittenStage) -> None:
    names = [f"job {number}" for number in range(12)]
    for name in names:
        stage.run(name)
    stage.attempt(names[3], storage_base="nowhere://base").finish(AttemptStatus.FAILED)

    def work(job_id: JobId) -> CollectedJob:
        return collect_job(stage.maintenance, job_id, CheckpointStorage.open)

    reports = list(each_job(map(job_id_of, names), work, CollectedJob, side_by_side=SIDE_BY_SIDE))
    assert [report.job for report in reports] == names
    assert [bool(report.problems) for report in reports] == [n == 3 for n in range(12)]
    assert [len(report.deleted) for report in reports if not report.problems] == [4] * 11
    assert {name: stage.statuses(name)[3] for name in names} == dict.fromkeys(names, "completed")
