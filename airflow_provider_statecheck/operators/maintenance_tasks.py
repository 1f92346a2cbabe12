"""Tasks of the maintenance Dag: gc, prune and verify for all jobs."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.retention import DEFAULT_AGE
from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StorageError
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_statecheck.hooks.maintenance import maintenance_gateway, savepoint_gateway, storage_opener
from airflow_provider_statecheck.maintenance.gc import CollectedJob, collect_job
from airflow_provider_statecheck.maintenance.job_maintenance import DropTokens, each_job
from airflow_provider_statecheck.maintenance.prune import PrunedJob, PruneRequest, prune_job
from airflow_provider_statecheck.maintenance.savepoints import serve_jobs
from airflow_provider_statecheck.maintenance.verify import verify_job
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.verify import Verification


log = logging.getLogger(__name__)


def collect_all(
    *,
    quarantine: timedelta | None = None,
    conn_id: str = DEFAULT_CONN_ID,
    storage_conn_id: str | None = None,
) -> int:
    """
    Delete the bytes of ended checkpoints of all jobs, as ``airflow statecheck gc --all``.

    :param quarantine: How long orphans of which no row says that they may go stay after they were found, a day or more; by
        default they go at once.
    :param conn_id: Connection that names the coordinator's server.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: How many bytes were deleted.
    :raises InvalidConfigurationError: for a quarantine of less than a day.
    :raises StorageError: after all jobs, if something could not be deleted.
    """
    gateway, opener = maintenance_gateway(conn_id), storage_opener(storage_conn_id)
    serve_jobs(savepoint_gateway(conn_id), gateway, _all(gateway), opener, configured_savepoint_dir())
    done = list(each_job(_all(gateway), lambda job_id: collect_job(gateway, job_id, opener, quarantine=quarantine)))
    for each in done:
        _tell(each.job, each.deleted_bytes, each.kept)
    _require_done(done)
    return sum(each.deleted_bytes for each in done)


def prune_all(
    older_than: timedelta = DEFAULT_AGE, *, conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None
) -> int:
    """
    Remove old rows, and jobs of test runs and of runs that are over, as ``airflow statecheck prune --test-jobs``.

    :param older_than: How long ago it has to have ended, a day or more.
    :param conn_id: Connection that names the coordinator's server.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: How many jobs were removed.
    :raises InvalidConfigurationError: for less than a day.
    :raises StorageError: after all jobs, if bytes of one could not be deleted; its rows stay.
    """
    request = PruneRequest(older_than=older_than, test_jobs=True)
    gateway, opener = maintenance_gateway(conn_id), storage_opener(storage_conn_id)
    done = list(each_job(_all(gateway), lambda job_id: prune_job(gateway, job_id, request, opener)))
    for each in done:
        _tell(each.job, each.deleted_bytes, each.kept)
    tokens = gateway.drop_tokens(DropTokens(age_seconds=older_than.total_seconds()))
    removed = sum(each.is_removed for each in done)
    log.info("%s of %s jobs and %s ended tokens removed", removed, len(done), tokens)
    _require_done(done)
    return removed


def verify_all(*, is_deep: bool = False, conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None) -> int:
    """
    Verify the retained checkpoints of all jobs, as ``airflow statecheck verify`` of each.

    :param is_deep: Whether to read every page of every file too.
    :param conn_id: Connection that names the coordinator's server.
    :param storage_conn_id: Connection with the credentials of the checkpoint storage.
    :return: How many checkpoints can be restored.
    :raises CorruptStateError: after all jobs, if one cannot.
    :raises StorageError: after all jobs, if the storage of one did not answer.
    """
    gateway, opener = maintenance_gateway(conn_id), storage_opener(storage_conn_id)
    found: list[Verification] = []
    unreachable: list[str] = []
    for job in gateway.jobs():
        try:
            # What was found before the storage failed stays found.
            found.extend(verify_job(gateway, gateway.describe(job.job_id), opener, is_deep=is_deep))
        except CheckpointNotFoundError:
            # Somebody removed it after the list was read.
            continue
        except StorageError as error:
            unreachable.append(f"{job.name}: {redact(str(error))}")
    _require_restorable(found, unreachable)
    return len(found)


def _all(gateway: MaintenanceGateway) -> list[JobId]:
    return [job.job_id for job in gateway.jobs()]


def _require_restorable(found: list[Verification], unreachable: list[str]) -> None:
    away = f"The storage of {len(unreachable)} job(s) did not answer: {'; '.join(unreachable)}" if unreachable else ""
    damaged = [f"{redact(each.pointer)}: {'; '.join(each.problems)}" for each in found if not each.is_restorable]
    if damaged:
        raise CorruptStateError(
            f"Expected {len(found)} checkpoints that can be restored, found {len(damaged)} that cannot: "
            f"{' '.join(damaged)} {away}".rstrip()
        )
    if unreachable:
        raise StorageError(f"Expected to verify all jobs. {away}")


def _tell(job: str, deleted_bytes: int, kept: list[str]) -> None:
    if deleted_bytes:
        log.info("Job %s: %s bytes deleted", job, deleted_bytes)
    for reason in kept:
        log.info("Job %s: kept, %s", job, reason)


def _require_done(done: list[CollectedJob] | list[PrunedJob]) -> None:
    problems = [f"{each.job}: {problem}" for each in done for problem in (*each.problems, *each.unreachable)]
    if problems:
        raise StorageError(
            f"Expected to delete all that has ended, found {len(problems)} place(s) where that failed; it is tried again "
            f"at the next run: {'; '.join(problems)}"
        )
