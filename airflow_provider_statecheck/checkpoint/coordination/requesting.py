"""Putting a request into the queue, which is rows."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.coordination import aligned_rows
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.requests import SnapshotRequest


class Requesting:
    """
    Takes requests for checkpoints.

    :param parts: What the coordinator is made of.
    """

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts

    def ask(
        self, request_key: str, properties: CheckpointProperties, target: str | None, is_periodic: bool
    ) -> SnapshotRequest:
        """
        Add a request; one that is known stays as it is.

        Where the queue is full, it or the least important one fails at once.
        """
        error = CheckpointException(CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
        with self._parts.transition() as tx:
            known = tx.request(request_key)
            if known is not None:
                return known
            request = SnapshotRequest(
                job_id=self._parts.leader.job_id,
                request_key=request_key,
                operator_id=ALIGNED_OPERATOR_ID,
                properties=properties,
                target=target,
                is_periodic=is_periodic,
                requested_at=tx.now,
            )
            admission = self._parts.decider.admit(tx.open_requests(ALIGNED_OPERATOR_ID), request)
            refused = admission.dropped if admission.accepted else (*admission.dropped, request)
            if admission.accepted:
                tx.save_request(request)
            for each in refused:
                aligned_rows.fail_request(tx, each, error)
        for each in refused:
            self._parts.count_failure(error, properties=each.properties)
        return request
