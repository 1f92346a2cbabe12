"""A run of the Dag ``live_steps``, whose steps wait for the test."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import Pids, StageRun

STEPS = ("numbers", "doubled", "total")
TOTAL = sum(2 * n for n in range(1000))


class SteppedRun(StageRun):
    """A run with one stage of three steps."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        super().__init__(deployment, "live_steps", f"{name}-{datetime.now(UTC):%H%M%S}")

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
