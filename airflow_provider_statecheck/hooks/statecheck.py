"""The hook: jobs and checkpoints as Airflow code sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.store import RECENT, CheckpointPage
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.hooks.connection import CONN_TYPE, DEFAULT_CONN_ID, check_address, coordinator_address
from airflow_provider_statecheck.hooks.transport import airflow_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
    from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord


class StatecheckHook(BaseHook):
    """
    Ask the checkpoint coordinator.

    Jobs are named as the operators name them: the user's own name, else ``dag_id/<logical date or run id>``; what a test
    run wrote is under ``test/``.

    :param statecheck_conn_id: Connection that names the server and, where tasks cannot prove themselves, a user. The
        default one need not exist: without it the coordinator is on this Airflow's api-server.
    """

    conn_name_attr = "statecheck_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Statecheck coordinator"

    def __init__(self, statecheck_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.statecheck_conn_id = statecheck_conn_id
        self._gateway: CheckpointCoordinatorGateway | None = None

    @override
    def get_conn(self) -> CheckpointCoordinatorGateway:
        """
        Return the way to the coordinator.

        :raises EnvironmentNotReadyError: where Airflow's database cannot be reached.
        """
        if self._gateway is None:
            self._gateway = airflow_gateway(self.statecheck_conn_id)
        return self._gateway

    def test_connection(self) -> tuple[bool, str]:
        """
        Tell whether the connection leads to a coordinator, over HTTP even where its database could be asked.

        :return: Whether it does, and what was found.
        """
        try:
            return True, check_address(coordinator_address(self.statecheck_conn_id))
        except StateCheckError as error:
            return False, str(error)

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self.get_conn().jobs()

    def checkpoints(
        self, job: str, uid: str | None = None, *, before: int | None = None, limit: int = RECENT
    ) -> tuple[CheckpointRecord, ...]:
        """
        Return the newest checkpoints of a job, the oldest of them first, ended ones included.

        :param job: Name of the job.
        :param uid: Only those of this operator.
        :param before: Only those with a lower id, such as the first one of an earlier answer.
        :param limit: How many at most, up to 1,000.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        operator_id = None if uid is None else operator_id_of(uid)
        page = CheckpointPage(before=before, limit=limit, operator_id=operator_id)
        found = self.get_conn().checkpoints(job_id_of(job), page)
        if not found:
            self.get_conn().describe(job_id_of(job))
        return found[::-1]

    def latest(self, job: str, uid: str) -> CheckpointRecord | None:
        """
        Return the newest completed checkpoint of an operator, ``None`` if it has none.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self.get_conn().latest(job_id_of(job), operator_id_of(uid))

    def restore_pointer(self, job: str, uid: str) -> str:
        """
        Return the URI of the directory that a restore of an operator would start from.

        :raises CheckpointNotFoundError: if there is no such job or it has no completed checkpoint.
        """
        latest = self.latest(job, uid)
        if latest is None:
            raise CheckpointNotFoundError(
                f"Operator {uid!r} of job {job!r} has no completed checkpoint; let the stage complete one first.",
                uid=uid,
            )
        return latest.location
