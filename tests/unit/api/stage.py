"""An attempt that may do everything: candidates to restore, a pending checkpoint, bytes to be deleted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, OperatorId, new_key
from airflow_provider_statecheck.checkpoint.messages import EndSavepoint, RequestSavepoint
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from tests.job_savepoints import begin_savepoint
from tests.messages import make_leadership, present
from tests.unit.api.server import MAINTENANCE, ApiServer, Attempt


@dataclass
class Stage:
    """The attempt and the server that it speaks to."""

    api: ApiServer
    attempt: Attempt
    pending: int

    @classmethod
    def begin(cls, api: ApiServer) -> Stage:
        """Let a first attempt fail after three checkpoints and a second one begin its first."""
        first = api.attempt()
        for _ in range(3):
            api.complete(first)
        api.finish(first, "failed")
        attempt = api.attempt()
        return cls(api, attempt, api.trigger(attempt))

    def on(self, api: ApiServer) -> Stage:
        """Return the same stage on a server with a copy of its rows."""
        return replace(self, api=api)

    def attempt_token(self) -> str:
        return self.attempt.token

    def task_token(self) -> str:
        return self.api.task_token()

    def reading_token(self) -> str:
        return self.api.reading_token(self.attempt.job_id)

    def maintenance_token(self) -> str:
        return self.api.task_token(MAINTENANCE)

    def idle_operator(self) -> str:
        """Return an operator of the same job that has a checkpoint and does not run."""
        other = self.api.attempt(uid="idle")
        self.api.complete(other)
        self.api.finish(other, "finished")
        return str(other.ref["operator_id"])

    def savepoint_request(self) -> str:
        """Ask for a savepoint of such an operator."""
        request = RequestSavepoint(
            job_id=JobId(self.attempt.job_id), operator_id=OperatorId(self.idle_operator()), request_key=new_key()
        )
        return self.api.services.savepoints.request(request).request_key

    def savepoint(self) -> int:
        """Begin a savepoint of such an operator."""
        job_id, key = JobId(self.attempt.job_id), self.savepoint_request()
        return self.api.services.savepoints.begin(job_id, key, "s3://lake", new_key()).checkpoint_id

    def completed_savepoint(self) -> str:
        """Complete a savepoint of such an operator."""
        request = EndSavepoint(job_id=JobId(self.attempt.job_id), **self.savepoint_metadata())
        return self.api.services.savepoints.end(request).location

    def savepoint_metadata(self) -> dict[str, Any]:
        """Begin a savepoint of such an operator, and return what names it and its metadata."""
        return self._metadata_of(self.savepoint())

    def pending_metadata(self) -> dict[str, Any]:
        """Return what names the pending checkpoint and its metadata."""
        return self._metadata_of(self.pending)

    def savepoint_of_job(self) -> int:
        """Begin a savepoint of the whole job, or return the pending one."""
        view = self.api.services.coordinator.describe(JobId(self.attempt.job_id))
        rows = view.of_operator(ALIGNED_OPERATOR_ID)
        pending = [c.checkpoint_id for c in rows if c.status is CheckpointStatus.PENDING]
        if pending:
            return pending[0]
        name = self.api.services.coordinator.describe(JobId(self.attempt.job_id)).job.name
        return begin_savepoint(self.api.services.aligned, OperatorId(self.idle_operator()), name).checkpoint_id

    def leader(self) -> dict[str, Any]:
        """Return a new leader of the aligned checkpoints of the job, which has drawn the ids of the examples."""
        name = self.api.services.coordinator.describe(JobId(self.attempt.job_id)).job.name
        leader = self.api.services.aligned.lead(make_leadership(job_name=name))
        self.api.services.aligned.count_ids(leader, at_least=15)
        encoded: dict[str, Any] = encode(leader)
        return encoded

    def _metadata_of(self, checkpoint_id: int) -> dict[str, Any]:
        checkpoint = present(self.api.services.coordinator.checkpoint(JobId(self.attempt.job_id), checkpoint_id))
        return {"checkpoint_id": checkpoint_id, "metadata_uri": f"{checkpoint.location}/_metadata"}
