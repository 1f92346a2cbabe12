"""Pruning of old rows, and of whole jobs with their files."""

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

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """
    What is to be forgotten.

    :raises InvalidConfigurationError: for an age of less than a day.
    """

    job_ids: tuple[JobId, ...] = ()
    """Jobs to be removed as a whole, and nothing else; empty for whatever is old in all jobs."""
    older_than: timedelta | None = None
    """Given, jobs go as a whole that are named after a run which is over. Rows go after ``DEFAULT_AGE`` else."""
    test_jobs: bool = False
    """Whether jobs of test runs go as a whole, at any age if none is given."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        require("older_than", self.older_than, lambda age: age is None or age >= SHORTEST_AGE, "a day or more")


@dataclass(slots=True)
class PrunedJob:
    """What became of one job."""

    job: str
    is_removed: bool = False
    checkpoints: int = 0
    """How many rows of checkpoints were forgotten."""
    attempts: int = 0
    deleted_bytes: int = 0
    kept: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    @property
    def is_worth_telling(self) -> bool:
        """Tell whether anything was done or should have been."""
        counts = (self.is_removed, self.checkpoints, self.attempts, self.deleted_bytes)
        return any((*counts, self.kept, self.problems, self.unreachable))

    def add(self, collected: CollectedJob) -> None:
        """Take over what garbage collection did on the way."""
        self.deleted_bytes += collected.deleted_bytes
        self.problems += collected.problems
        self.unreachable += collected.unreachable


def prune_job(
    gateway: MaintenanceGateway, job_id: JobId, request: PruneRequest, open_storage: OpenStorage
) -> PrunedJob:
    """
    Forget what is old of one job, or the whole job where the request says so.

    Killed at any point, it leaves a job that the next call goes on with.

    :param gateway: The rows.
    :param open_storage: Gives the storage of a checkpoint directory.
    :raises CheckpointNotFoundError: if there is no such job.
    """
    view = gateway.describe(job_id)
    report = PrunedJob(job=view.job.name)
    if _is_to_go(view, request):
        _remove(gateway, view, request, open_storage, report)
    if not (report.is_removed or report.problems or report.unreachable or request.job_ids):
        _forget(gateway, view, request, open_storage, report)
    return report


def _is_to_go(view: JobView, request: PruneRequest) -> bool:
    if view.job.job_id in request.job_ids:
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
    is_named = view.job.job_id in request.job_ids
    age = timedelta(0) if is_named else request.older_than or timedelta(0)
    return RetireJob(job_id=view.job.job_id, idle_seconds=age.total_seconds(), is_named=is_named)


def _empty_and_remove(
    gateway: MaintenanceGateway, retirement: RetireJob, open_storage: OpenStorage, report: PrunedJob
) -> None:
    # The rows say by now that nothing is to be restored, so its bytes are garbage like any other.
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
        # The rows of attempts tell where bytes may lie; those go first.
        collected = collect_job(gateway, view.job.job_id, open_storage)
        report.add(collected)
        # So they stay while bytes are left that nobody may delete yet.
        report.kept += [f"rows: a retained checkpoint of operator {uid!r} cannot be read" for uid in collected.skipped]
        if report.problems or report.unreachable or collected.skipped:
            return
        rows = gateway.forget(ForgetRows(job_id=view.job.job_id, age_seconds=age))
    report.checkpoints, report.attempts = len(rows.checkpoint_ids), len(rows.attempts)
