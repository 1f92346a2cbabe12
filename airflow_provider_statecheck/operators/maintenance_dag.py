"""
Maintenance Dag for the checkpoints of all jobs, and its tasks.

To add it, create a file in the Dags folder::

    from airflow_provider_statecheck.operators.maintenance_dag import statecheck_maintenance

    statecheck_maintenance()
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, guarded_storage_opener
from airflow_provider_statecheck.hooks.transport import job_savepoints, maintenance_gateway
from airflow_provider_statecheck.maintenance.gc import (
    CollectedJob,
    JobReport,
    PrunedJob,
    PruneRequest,
    collect_job,
    prune_job,
)
from airflow_provider_statecheck.maintenance.job_maintenance import SIDE_BY_SIDE, each_job
from airflow_provider_statecheck.maintenance.verify import verify_job
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
    from airflow_provider_statecheck.maintenance.verify import Verification

log = logging.getLogger(__name__)


_SUNDAY = 6
_DOC = """
Maintain the checkpoints of all jobs.

* `collect` deletes the files of ended checkpoints every day.
* `prune` deletes database rows of ended checkpoints and attempts, jobs of test runs and jobs of ended runs that are
  older than a month, every day.
* `verify` reads the retained checkpoints of all jobs on Sundays, and fails if one of them cannot be restored.

The tasks run one after the other, independent of each other's result. They call the coordinator over HTTP, which
accepts maintenance calls from the Dags in `[statecheck] maintenance_dags`.
"""


@dag(
    dag_id="statecheck_maintenance",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    is_paused_upon_creation=True,
    doc_md=_DOC,
    tags=["statecheck"],
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
)
def statecheck_maintenance() -> None:
    """Collect and prune every day, verify on Sundays."""

    @task
    def collect() -> int:
        return collect_all()

    @task
    def prune() -> int:
        return prune_all()

    @task
    def verify() -> int:
        if get_current_context()["dag_run"].run_after.weekday() != _SUNDAY:
            raise AirflowSkipException("Checkpoints are verified on Sundays.")
        return verify_all()

    # Without dependencies, a failed task does not stop the others, and the run still fails.
    collect()
    prune()
    verify()


def collect_all(
    *,
    quarantine: timedelta | None = None,
    conn_id: str = DEFAULT_CONN_ID,
    storage_conn_id: str | None = None,
) -> int:
    """
    Delete the files of ended checkpoints of all jobs, like ``airflow statecheck gc --all``.

    :param quarantine: Time from the discovery of an orphan file without a row to its deletion, at least a day; by
        default such files are deleted immediately.
    :param conn_id: Connection to the coordinator.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: Number of deleted bytes.
    :raises InvalidConfigurationError: if the quarantine is shorter than a day.
    :raises StorageError: if a deletion failed; raised after all jobs.
    """
    gateway, opener = maintenance_gateway(conn_id), guarded_storage_opener(storage_conn_id)
    taken = job_savepoints(conn_id, storage_conn_id).take_all(_all(gateway))
    collected = each_job(
        _all(gateway),
        lambda job_id: collect_job(gateway, job_id, opener, quarantine=quarantine),
        CollectedJob,
        side_by_side=SIDE_BY_SIDE,
    )
    done = list(collected)
    for each in done:
        _log_result(each.job, each.deleted_bytes, each.kept)
    _require_deleted([*taken, *done])
    return sum(each.deleted_bytes for each in done)


def prune_all(
    older_than: timedelta = DEFAULT_AGE, *, conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None
) -> int:
    """
    Delete old rows, and the jobs of test runs and of ended runs, like ``airflow statecheck prune --test-jobs``.

    :param older_than: Minimum age, at least a day.
    :param conn_id: Connection to the coordinator.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: Number of removed jobs.
    :raises InvalidConfigurationError: if the age is less than a day.
    :raises StorageError: if files of a job could not be deleted, and its rows are retained; raised after all jobs.
    """
    request = PruneRequest(older_than=older_than, test_jobs=True)
    gateway, opener = maintenance_gateway(conn_id), guarded_storage_opener(storage_conn_id)
    pruned = each_job(
        _all(gateway),
        lambda job_id: prune_job(gateway, job_id, request, opener),
        PrunedJob,
        side_by_side=SIDE_BY_SIDE,
    )
    done = list(pruned)
    for each in done:
        _log_result(each.job, each.deleted_bytes, each.kept)
    tokens = gateway.drop_tokens(age_seconds=older_than.total_seconds())
    removed = sum(each.is_removed for each in done)
    log.info("%s of %s and %s removed", removed, counted(len(done), "job"), counted(tokens, "ended token"))
    _require_deleted(done)
    return removed


def verify_all(*, is_deep: bool = False, conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None) -> int:
    """
    Verify the retained checkpoints of all jobs, like ``airflow statecheck verify`` for each job.

    :param is_deep: Whether to also read every page of every file.
    :param conn_id: Connection to the coordinator.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: Number of verified checkpoints.
    :raises CorruptStateError: if a checkpoint cannot be restored, or a row of a job cannot be read; raised after all
        jobs.
    :raises StorageError: if the storage of a job is unavailable; raised after all jobs.
    """
    gateway, opener = maintenance_gateway(conn_id), guarded_storage_opener(storage_conn_id)
    found: list[Verification] = []
    unreachable: list[str] = []
    unreadable: list[str] = []
    names = {job.job_id: job.name for job in gateway.jobs()}

    def verify(job_id: JobId) -> JobReport:
        # extend() retains the results that were yielded before an error.
        found.extend(verify_job(gateway, gateway.describe(job_id), opener, is_deep=is_deep))
        return JobReport(job=job_id)

    for each in each_job(names, verify, JobReport):
        unreadable += [f"{names[JobId(each.job)]}: {problem}" for problem in each.problems]
        unreachable += [f"{names[JobId(each.job)]}: {problem}" for problem in each.unreachable]
    _require_restorable(found, unreachable, unreadable)
    return len(found)


def _all(gateway: JobMaintenance) -> list[JobId]:
    return [job.job_id for job in gateway.jobs()]


def _require_restorable(found: list[Verification], unreachable: list[str], unreadable: list[str]) -> None:
    unavailable = (
        f"The storage of {len(unreachable)} job(s) is unavailable: {'; '.join(unreachable)}" if unreachable else ""
    )
    damaged = [f"{redact(each.pointer)}: {'; '.join(each.problems)}" for each in found if not each.is_restorable]
    damaged += unreadable
    if damaged:
        raise CorruptStateError(
            f"Expected {len(found)} restorable checkpoints, found {len(damaged)} that cannot be restored: "
            f"{' '.join(damaged)} {unavailable}".rstrip()
        )
    if unreachable:
        raise StorageError(f"Expected to verify all jobs. {unavailable}")


def _log_result(job: str, deleted_bytes: int, kept: list[str]) -> None:
    if deleted_bytes:
        log.info("Job %s: %s bytes deleted", job, deleted_bytes)
    for reason in kept:
        log.info("Job %s: not deleted, %s", job, reason)


def _require_deleted(done: Sequence[JobReport]) -> None:
    found = (f"{each.job}: {problem}" for each in done for problem in (*each.problems, *each.unreachable))
    problems = tuple(dict.fromkeys(found))  # rows that cannot be read fail both steps of a job
    if problems:
        raise StorageError(
            f"Expected to maintain all jobs, found {len(problems)} failure(s); the next run retries them: "
            f"{'; '.join(problems)}"
        )
