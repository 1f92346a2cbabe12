"""Airflow hook that reads jobs and checkpoints."""

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
    Read jobs and checkpoints from the coordinator.

    The name of a job is the ``job`` argument of its operators, by default ``dag_id/<logical date or run id>``. The names of
    test runs start with ``test/``.

    :param statecheck_conn_id: Connection to the server, with a login if tasks cannot authenticate on their own. If the
        default connection is missing, the hook uses this Airflow's api-server.
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
        Return a gateway to the coordinator.

        :raises EnvironmentNotReadyError: Airflow's database is not accessible and no task is running.
        """
        if self._gateway is None:
            self._gateway = airflow_gateway(self.statecheck_conn_id)
        return self._gateway

    def test_connection(self) -> tuple[bool, str]:
        """
        Test the connection to the coordinator over HTTP.

        :return: Whether the test succeeded, and a message.
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
        Return the newest checkpoints of a job in ascending order, including ended ones.

        :param job: Name of the job.
        :param uid: Uid of an operator; by default all operators.
        :param before: Upper bound of the ids, exclusive; the first id of a page selects the previous page.
        :param limit: Maximum number of checkpoints, at most 1,000.
        :raises CheckpointNotFoundError: There is no such job.
        """
        operator_id = None if uid is None else operator_id_of(uid)
        page = CheckpointPage(before=before, limit=limit, operator_id=operator_id)
        newest_first = self.get_conn().checkpoints(job_id_of(job), page)
        if not newest_first:
            # Raises if the job is unknown.
            self.get_conn().describe(job_id_of(job))
        return newest_first[::-1]

    def latest(self, job: str, uid: str) -> CheckpointRecord | None:
        """
        Return the newest completed checkpoint of an operator, ``None`` if it has none.

        :raises CheckpointNotFoundError: There is no such job.
        """
        return self.get_conn().latest(job_id_of(job), operator_id_of(uid))

    def restore_pointer(self, job: str, uid: str) -> str:
        """
        Return the URI of the checkpoint directory from which an operator would be restored.

        :raises CheckpointNotFoundError: There is no such job, or the operator has no completed checkpoint.
        """
        latest = self.latest(job, uid)
        if latest is None:
            raise CheckpointNotFoundError(
                f"Operator {uid!r} of job {job!r} has no completed checkpoint; run the stage until it completes one.",
                uid=uid,
            )
        return latest.location
