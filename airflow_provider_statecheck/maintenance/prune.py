"""
Pruning of old rows and of whole jobs.

The files of a job are deleted before its rows, because the rows of attempts name the directories with files. An interrupted
call is completed by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import JobId, is_test_job
from airflow_provider_statecheck.checkpoint.layout import job_uri
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.retention import DEFAULT_AGE, last_active, owners_of_run
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.maintenance.gc import CollectedJob, OpenStorage, collect_job, storage_bases
from airflow_provider_statecheck.maintenance.job_maintenance import SHORTEST_AGE, ForgetRows, RetireJob
from airflow_provider_statecheck.maintenance.removal_requests import open_removal

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """
    Selection of the jobs and rows to delete.

    :raises InvalidConfigurationError: ``older_than`` is less than a day.
    """

    job_ids: tuple[JobId, ...] = ()
    """
    Jobs to remove completely. If empty, old rows and jobs are selected by age, and users' requests to remove a job are
    carried out.
    """
    older_than: timedelta | None = None
    """
    Minimum age of the deleted rows, ``DEFAULT_AGE`` by default.

    If set, jobs named after a run that ended before this age are removed completely.
    """
    test_jobs: bool = False
    """Whether to remove jobs of test runs completely, at any age if ``older_than`` is not set."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        require("older_than", self.older_than, lambda age: age is None or age >= SHORTEST_AGE, "a day or more")


@dataclass(slots=True)
class PrunedJob:
    """Result of pruning one job."""

    job: str
    is_removed: bool = False
    checkpoints: int = 0
    """Number of deleted checkpoint rows."""
    attempts: int = 0
    """Number of deleted attempt rows."""
    deleted_bytes: int = 0
    kept: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        """Return whether anything was deleted or retained with a reason, or failed."""
        counts = (self.is_removed, self.checkpoints, self.attempts, self.deleted_bytes)
        return any((*counts, self.kept, self.problems, self.unreachable))

    def add(self, collected: CollectedJob) -> None:
        """Add the result of a garbage collection."""
        self.deleted_bytes += collected.deleted_bytes
        self.problems += collected.problems
        self.unreachable += collected.unreachable


def prune_job(
    gateway: MaintenanceGateway, job_id: JobId, request: PruneRequest, open_storage: OpenStorage
) -> PrunedJob:
    """
    Delete the old rows of a job, or the whole job if the request selects it.

    :param gateway: Gateway to the rows.
    :param job_id: Job to prune.
    :param request: Selection of jobs and rows.
    :param open_storage: Function that opens the storage of a checkpoint directory.
    :raises CheckpointNotFoundError: There is no such job.
    """
    view = gateway.describe(job_id)
    report = PrunedJob(job=view.job.name)
    if _is_selected(view, request):
        _remove(gateway, view, request, open_storage, report)
    if not (report.is_removed or report.problems or report.unreachable or request.job_ids):
        _forget(gateway, view, request, open_storage, report)
    return report


def _is_selected(view: JobView, request: PruneRequest) -> bool:
    if request.job_ids:
        return view.job.job_id in request.job_ids
    if open_removal(view) is not None:
        return True
    age = request.older_than
    is_old = age is not None and last_active(view) <= view.read_at - age
    if is_test_job(view.job.name):
        return request.test_jobs and (age is None or is_old)
    return is_old and bool(owners_of_run(view))


def _remove(
    gateway: MaintenanceGateway, view: JobView, request: PruneRequest, open_storage: OpenStorage, report: PrunedJob
) -> None:
    retirement = _retirement(view, request)
    removal = gateway.refusal(retirement) if request.dry_run else gateway.retire(retirement)
    if removal.kept_because:
        report.kept += removal.kept_because
    elif request.dry_run:
        report.is_removed = True
        _measure(view, open_storage, report)
    else:
        _empty_and_remove(gateway, retirement, open_storage, report)


def _retirement(view: JobView, request: PruneRequest) -> RetireJob:
    job_id, asked = view.job.job_id, open_removal(view)
    if request.job_ids:
        return RetireJob(job_id=job_id, is_named=True)
    if asked is not None:
        return RetireJob(job_id=job_id, request_key=asked.request_key)
    return RetireJob(job_id=job_id, idle_seconds=(request.older_than or timedelta(0)).total_seconds())


def _empty_and_remove(
    gateway: MaintenanceGateway, retirement: RetireJob, open_storage: OpenStorage, report: PrunedJob
) -> None:
    # All checkpoints of a retired job have ended, so garbage collection deletes their files.
    collected = collect_job(gateway, retirement.job_id, open_storage)
    report.add(collected)
    if not report.problems and not report.unreachable:
        report.kept += gateway.remove(retirement).kept_because
        report.is_removed = not report.kept


def _measure(view: JobView, open_storage: OpenStorage, report: PrunedJob) -> None:
    for base in storage_bases(view):
        try:
            files = open_storage(base).list_files(job_uri(base, view.job.job_id))
        except StateCheckError as error:
            report.unreachable.append(str(error))
        else:
            report.deleted_bytes += sum(files.values())


def _forget(
    gateway: MaintenanceGateway, view: JobView, request: PruneRequest, open_storage: OpenStorage, report: PrunedJob
) -> None:
    age = (request.older_than or DEFAULT_AGE).total_seconds()
    rows = gateway.forget(ForgetRows(job_id=view.job.job_id, age_seconds=age, dry_run=True))
    if rows and not request.dry_run:
        # Files are deleted first: without the rows of attempts, their directories would be unknown.
        collected = collect_job(gateway, view.job.job_id, open_storage)
        report.add(collected)
        # Rows are retained while files of the operator cannot be deleted.
        report.kept += [f"rows: a retained checkpoint of operator {uid!r} cannot be read" for uid in collected.skipped]
        if report.problems or report.unreachable or collected.skipped:
            return
        rows = gateway.forget(ForgetRows(job_id=view.job.job_id, age_seconds=age))
    report.checkpoints, report.attempts = len(rows.checkpoint_ids), len(rows.attempts)
