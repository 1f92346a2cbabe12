"""A run of the Dag ``live_steps``, whose steps wait for the test."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from airflow_provider_statecheck.checkpoint.records import JobAction, RequestStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.maintenance.actions import RequestedAction, requested_actions
from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import Pids, StageRun

STEPS = ("numbers", "doubled", "total")
TOTAL = sum(2 * n for n in range(1000))


class SteppedRun(StageRun):
    """A run with one stage of three steps."""

    def __init__(self, deployment: Deployment, name: str, dag_id: str = "live_steps") -> None:
        super().__init__(deployment, dag_id, f"{name}-{datetime.now(UTC):%H%M%S}")

    @property
    def job_name(self) -> str:
        return f"{self.dag_id}/{self.logical_date.isoformat()}"

    def wait_for_step(self, step: str) -> Pids:
        """Wait until a try begins a step, and return its processes."""
        said = self.folder / f"{step}.json"
        wait_until(f"the step {step} of {self.run_id}", lambda: said.exists() or self._has_ended())
        assert said.exists(), f"{self.run_id} ended before its step {step}"
        pids = Pids(**json.loads(said.read_text()))
        said.unlink()  # the next try says it again
        return pids

    def finish_step(self, step: str) -> None:
        self.steer(f"release_{step}", "go on")

    def finish(self) -> None:
        """Let all steps finish, also those of later tries."""
        for step in STEPS:
            self.finish_step(step)


class JobRun(SteppedRun):
    """A run of the Dag ``live_actions`` in a job of its own that outlives the run."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        super().__init__(deployment, name, "live_actions")

    @property
    def job_name(self) -> str:
        return f"job-of-{self.run_id}"

    def trigger(self) -> None:
        conf = {"control": str(self.folder), "job": self.job_name}
        self.deployment.api.trigger(self.dag_id, self.run_id, self.logical_date.isoformat(), conf)

    def job(self) -> JobView:
        return self.deployment.job(self.job_name)

    def wait_for_action(self, action: JobAction, status: RequestStatus) -> RequestedAction:
        """Wait until the newest request of an action has a status."""

        def found() -> RequestedAction | None:
            newest = next((each for each in requested_actions(self.job()) if each.action is action), None)
            return newest if newest is not None and newest.status is status else None

        return wait_until(f"the {action} of {self.run_id} to be {status}", found)
