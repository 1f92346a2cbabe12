"""
What the holders of tokens may do now: tasks while they run, users by their permissions.

A token is the proof of who received it. What its holder may read and change is decided at each call: a task must still
run, and a user who obtained a token for a task must still be permitted to edit the task instances of its Dag. The same
holds for each job that a token reads or works on, until a token that a task obtained by itself is bound to an attempt:
from then on, it is a token of this attempt. That of a user remains one of the user, as Dags of others may join a job at
any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.job_list import LARGEST_JOB_PAGE, JobList, JobsPage
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.checkpoint.store import JobStore, JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError, CorruptRowError
from airflow_provider_statecheck.metadata.tables import Caller, TokenRecord, UserCaller


class TaskDirectory(Protocol):
    """Lookup of the tasks and Dags of Airflow."""

    def prove(self, ti_id: str, secret: str) -> Caller:
        """
        Return the running task instance that announced a secret; the secret is valid once.

        :raises AccessDeniedError: if the task instance does not exist or does not run, or if the secret is wrong.
        :raises CoordinatorUnavailableError: if the database does not respond.
        """

    def running(self, caller: Caller) -> Caller:
        """
        Return a task instance with the id of its try.

        :raises AccessDeniedError: if the task instance does not exist or does not run.
        """

    def is_waiting(self, caller: Caller) -> bool:
        """Return ``True`` if a task instance runs or is deferred, in the same try if its id is known."""

    def is_dag(self, dag_id: str) -> bool:
        """Return ``True`` if a Dag with this id exists."""

    def has_teams(self) -> bool:
        """Return ``True`` if Dags belong to teams, whose tasks must not work on the jobs of each other."""

    def of_team(self, dag_id: str, others: Collection[str]) -> frozenset[str]:
        """Return those of other Dags that exist and belong to the team of a Dag."""


class JobsOfUser(Protocol):
    """Jobs that a user may read and work on now."""

    def view(self, job_id: str) -> JobView:
        """
        Return the rows of a job.

        :raises CheckpointNotFoundError: if there is no such job, or if the user may not read it, with the same text.
        """

    def overviews(self, page: JobsPage) -> JobList:
        """Return those jobs of a page of the list that the user may read."""

    def require_editable(self, dag_id: str) -> None:
        """
        Require the permission to edit the task instances of a Dag.

        :raises AccessDeniedError: if the user lacks it.
        """

    def may_work_on(self, view: JobView, dag_id: str) -> bool:
        """Return whether the user may work on a job with a task of a Dag."""


UserDirectory = Callable[[str, JobStore], JobsOfUser]
"""
Returns the jobs of a user, as ``Caller.login`` names it; raises an ``AccessDeniedError`` if there is no such user now.
"""


def no_users(login: str, rows: JobStore) -> NoReturn:
    """
    Refuse all users, on a server without Airflow.

    :raises AccessDeniedError: always.
    """
    raise AccessDeniedError(
        "Expected the token of a task, found one of a user of Airflow; send it to Airflow's api-server."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Decides what the holder of a token may read and change at the time of a call."""

    rows: Callable[[], JobStore]
    tasks: TaskDirectory
    users: UserDirectory
    maintenance_dags: Callable[[], frozenset[str]]
    reads_other_jobs: Callable[[], bool]
    """Returns whether a task may read jobs on which its Dag does not work."""

    def require_valid(self, token: TokenRecord) -> None:
        """
        Require a holder that may still use a token.

        :raises AccessDeniedError: if the task does not run and the token is not bound to an attempt, or if the user who
            obtained the token may not edit the task instances of the Dag any more.
        """
        caller = token.caller
        if isinstance(caller, UserCaller):
            return
        if token.attempt is None and not self.tasks.is_waiting(caller):
            raise AccessDeniedError(
                "Expected the token of a task that runs or is deferred, found that this try of the task has ended; a "
                "token of an ended task is not valid any more."
            )
        if caller.login:
            self._jobs_of(caller).require_editable(caller.dag_id)

    def require_readable(self, token: TokenRecord, job_id: JobId) -> None:
        """
        Require a token that may read a job.

        :raises AccessDeniedError: if the token is bound to another job, or if the task may not read the job.
        :raises CheckpointNotFoundError: if the user who obtained the token may not read the job.
        """
        if token.job_id not in (None, job_id):
            raise AccessDeniedError(
                f"Expected a token of job {job_id}, found one of job {token.job_id}; request a new token."
            )
        caller = token.caller
        if caller.login:
            self._require_of_user(self._jobs_of(caller), token, job_id)
        elif token.attempt is None and isinstance(caller, Caller) and self._is_limited(caller):
            self._require_of_task(caller, self.rows().describe(job_id))

    def readable(self, caller: Caller, jobs: Collection[JobRecord]) -> tuple[JobRecord, ...]:
        """Return those of all jobs that a task, or the user who obtained its token, may read."""
        if not caller.login and not self._is_limited(caller):
            return tuple(jobs)
        listed = {*self._ids(caller)}
        return tuple(job for job in jobs if job.job_id in listed)

    def require_workable(self, caller: Caller, job_id: JobId, *, knows_job: bool) -> None:
        """
        Require a task that may work on a job, whether or not an operator of the job is its own.

        :param knows_job: Whether the caller knows that there is the job, or may open it. For other users, it need not
            exist.
        :raises AccessDeniedError: if the task, or the user who obtained its token, may not work on the job.
        :raises CheckpointNotFoundError: if the user who obtained the token may not read the job.
        """
        if not (caller.login or self._is_of_team(caller)):
            return
        jobs = self._jobs_of(caller) if caller.login else None
        try:
            view = self.rows().describe(job_id) if knows_job or jobs is None else jobs.view(job_id)
        except CheckpointNotFoundError:
            if knows_job:
                return
            raise
        except CorruptRowError:
            if jobs is not None:
                jobs.view(job_id)  # which hides it from a user who may not read the job
            raise
        if not self._may_work_on(caller, view, jobs):
            raise AccessDeniedError(
                f"Expected a job whose Dags the caller may all edit, found that task {caller.task_id!r} of Dag "
                f"{caller.dag_id!r} may not work on job {job_id}; name another job, or grant the permission.",
                job_id=job_id,
            )

    def is_of_maintenance(self, caller: Caller) -> bool:
        """Return whether a task belongs to a Dag that does maintenance."""
        return caller.dag_id in self.maintenance_dags()

    def _may_work_on(self, caller: Caller, view: JobView, jobs: JobsOfUser | None) -> bool:
        if jobs is not None:
            return jobs.may_work_on(view, caller.dag_id)
        others = {*view.dag_ids} - {caller.dag_id}
        return others <= self.tasks.of_team(caller.dag_id, others)

    def _require_of_user(self, jobs: JobsOfUser, token: TokenRecord, job_id: JobId) -> None:
        try:
            jobs.view(job_id)
        except CheckpointNotFoundError:
            # The driver of a job reads it also while the Dags of other operators are unknown, as after a recovery.
            if token.attempt is None or not self._is_worked_on(jobs, token.task, job_id):
                raise

    def _is_worked_on(self, jobs: JobsOfUser, caller: Caller, job_id: JobId) -> bool:
        try:
            return jobs.may_work_on(self.rows().describe(job_id), caller.dag_id)
        except CorruptRowError:
            return False

    def _is_limited(self, caller: Caller) -> bool:
        return self._is_of_team(caller) or not (self.is_of_maintenance(caller) or self.reads_other_jobs())

    def _is_of_team(self, caller: Caller) -> bool:
        return not self.is_of_maintenance(caller) and self.tasks.has_teams()

    def _require_of_task(self, caller: Caller, view: JobView) -> None:
        others, dag_id = {*view.dag_ids} - {caller.dag_id}, caller.dag_id
        is_own = dag_id in view.dag_ids or view.job.name.startswith(f"{dag_id}/")
        if not is_own and not self.reads_other_jobs():
            raise AccessDeniedError(
                f"Expected a job on which Dag {dag_id!r} works, found {view.job.name!r}; set [statecheck] "
                "read_other_jobs on the api-server to let tasks read the jobs of other Dags.",
                job_id=view.job.job_id,
            )
        is_unknown = view.is_of_unknown_dag and not is_own
        if self.tasks.has_teams() and (is_unknown or not others <= self.tasks.of_team(dag_id, others)):
            raise AccessDeniedError(
                f"Expected a job of the team of Dag {dag_id!r}, found {view.job.name!r}; only tasks of its own team "
                "read a job.",
                job_id=view.job.job_id,
            )

    def _ids(self, caller: Caller) -> Iterator[JobId]:
        page = JobsPage(limit=LARGEST_JOB_PAGE, with_test_jobs=True)
        if caller.login:
            yield from listed_ids(self._jobs_of(caller).overviews, page)
            return
        rows = self.rows()
        if self.tasks.has_teams():
            teammates = self.tasks.of_team(caller.dag_id, rows.dag_ids()) | {caller.dag_id}
            page = replace(page, readable_dag_ids=teammates)
        if not self.reads_other_jobs():
            page = replace(page, dag_id=caller.dag_id)
        yield from listed_ids(rows.job_overviews, page)

    def _jobs_of(self, caller: Caller | UserCaller) -> JobsOfUser:
        return self.users(caller.login, self.rows())


def listed_ids(overviews: Callable[[JobsPage], JobList], page: JobsPage) -> Iterator[JobId]:
    """Yield the ids of the jobs of a list, from a page on."""
    while True:
        listed = overviews(page)
        yield from (JobId(job.job_id) for job in listed.jobs)
        if listed.following is None:
            return
        page = replace(page, after=listed.following)


def job_of(message: Any) -> JobId | None:
    """Return the job that a message is about; ``None`` for one about all jobs."""
    name = getattr(message, "job_name", None)
    if name is not None:
        return job_id_of(name)
    about = next((found for each in ("attempt", "leader") if (found := getattr(message, each, None))), message)
    return getattr(about, "job_id", None)
