"""
Amazon EMR on EC2, on EKS and serverless, and AWS Glue: moto, and what runs the jobs that it was given.

moto answers the calls and keeps the state of jobs, but runs none. Before and after each request a runner starts what is
new, and tells moto what became of it, so a state is as old as the request. The steps of a cluster run one after the
other; a step that is no ``spark-submit`` succeeds at once. moto knows neither ``CancelSteps`` nor ``BatchStopJobRun``,
which are answered here. Roles, sizes, queues and the start of clusters are missing.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_api import state_manager
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.services.drivers import DriverState, SubmittedDrivers

REGION = "us-east-1"
ROLE = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/jobs"
_NOT_FOR_SCRIPTS = ("--conf", "--extra-py-files", "--scriptLocation", "--job-language")
"""Arguments that Glue takes for itself."""


def _states(succeeded: str, cancelled: str = "CANCELLED") -> dict[DriverState, str]:
    return {
        DriverState.RUNNING: "RUNNING",
        DriverState.SUCCEEDED: succeeded,
        DriverState.FAILED: "FAILED",
        DriverState.CANCELLED: cancelled,
    }


_OF_STEPS = _states("COMPLETED")
_ON_EKS = _states("COMPLETED")
_SERVERLESS = _states("SUCCESS")
_OF_GLUE = _states("SUCCEEDED", "STOPPED")


@contextmanager
def amazon(drivers: SubmittedDrivers) -> Iterator[str]:
    """Serve the calls, and return their address."""
    for service in ("emr", "emr-containers", "emr-serverless", "glue"):
        get_backend(service).reset()
    # The runner alone says how far a run of Glue is.
    state_manager.set_transition("glue::job_run", {"progression": "manual", "times": 1 << 30})
    server = make_server("127.0.0.1", 0, _Runner(drivers), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        state_manager.unset_transition("glue::job_run")


@dataclass
class _Runner:
    """Moto's application with jobs that run."""

    drivers: SubmittedDrivers
    numbers: dict[str, int] = field(default_factory=dict)
    """Drivers by the ids of jobs."""
    _moto: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self._look()
        answer = self._own_answer(environ)
        if answer is not None:
            start_response("200 OK", [("Content-Type", "application/x-amz-json-1.1")])
            return [json.dumps(answer).encode()]
        found = list(self._moto(environ, start_response))
        self._look()
        return found

    def _look(self) -> None:
        with self._lock:
            for cluster in _backend("emr").clusters.values():
                self._look_at_steps(cluster.steps)
            for job in _backend("emr-containers").job_runs.values():
                job.state = self._state(job.id, job.state, _words(job, "sparkSubmitJobDriver"), _ON_EKS)
            for jobs in _backend("emr-serverless").job_runs.values():
                for job in jobs:
                    job.state = self._state(job.id, job.state, _words(job, "sparkSubmit"), _SERVERLESS)
            for job in _backend("glue").jobs.values():
                for run in job.job_runs:
                    run.status = self._state(run.job_run_id, run.status, _words_of_run(job, run), _OF_GLUE)

    def _look_at_steps(self, steps: list[Any]) -> None:
        for step in steps:
            words = _words_of_step(step)
            if words is None:
                step.state = "COMPLETED"
            elif step.state != "CANCELLED":
                step.state = self._state(step.id, step.state, words, _OF_STEPS)
            if step.state == "RUNNING":
                break

    def _state(self, job_id: str, known: str, words: Sequence[str], states: Mapping[DriverState, str]) -> str:
        """Return the state of a job, which is started if it is new, and ended if moto was told so."""
        number = self.numbers.get(job_id)
        if number is None:
            number = self.numbers[job_id] = self.drivers.start(words)
        elif known == "CANCELLED":
            self.drivers.cancel(number)
        return states[self.drivers.state(number)]

    def _own_answer(self, environ: dict[str, Any]) -> dict[str, Any] | None:
        call = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        if call not in ("CancelSteps", "BatchStopJobRun"):
            return None
        message = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        return self._cancel_steps(message) if call == "CancelSteps" else self._stop_runs(message)

    def _cancel_steps(self, message: dict[str, Any]) -> dict[str, Any]:
        for step in _backend("emr").clusters[message["ClusterId"]].steps:
            if step.id in message["StepIds"]:
                self._cancel(step.id)
                step.state = "CANCELLED"
        return {"CancelStepsInfoList": [{"StepId": each, "Status": "SUBMITTED"} for each in message["StepIds"]]}

    def _stop_runs(self, message: dict[str, Any]) -> dict[str, Any]:
        for run_id in message["JobRunIds"]:
            self._cancel(run_id)
        stopped = [{"JobName": message["JobName"], "JobRunId": each} for each in message["JobRunIds"]]
        return {"SuccessfulSubmissions": stopped, "Errors": []}

    def _cancel(self, job_id: str) -> None:
        if job_id in self.numbers:
            self.drivers.cancel(self.numbers[job_id])


def _backend(service: str) -> Any:
    return get_backend(service)[DEFAULT_ACCOUNT_ID][REGION]  # type: ignore[call-overload]


def _words_of_step(step: Any) -> list[str] | None:
    return list(step.args[1:]) if step.args[:1] == ["spark-submit"] else None


def _words(job: Any, kind: str) -> list[str]:
    driver = job.job_driver[kind]
    options = shlex.split(driver.get("sparkSubmitParameters", ""))
    return [*options, driver["entryPoint"], *driver.get("entryPointArguments", ())]


def _words_of_run(job: Any, run: Any) -> list[str]:
    arguments = (job.default_arguments or {}) | (run.arguments or {})
    settings = shlex.split(f"--conf {arguments['--conf']}") if "--conf" in arguments else []
    files = ["--py-files", arguments["--extra-py-files"]] if "--extra-py-files" in arguments else []
    script = arguments.get("--scriptLocation", job.command["ScriptLocation"])
    named = [word for name, value in arguments.items() if name not in _NOT_FOR_SCRIPTS for word in (name, value)]
    return [*settings, *files, script, "--JOB_NAME", job.name, *named]
