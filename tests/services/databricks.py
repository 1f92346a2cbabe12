"""
A stand-in for a workspace of Databricks.

It answers what the provider's hooks ask of Jobs 2.1 and 2.2: ``jobs/runs/submit``, ``get``, ``get-output``, ``cancel``
and ``cancel-all``, ``jobs/run-now`` and ``jobs/list``. A run has one task with a script, a notebook or
``spark-submit``; a notebook is a Python file here, with ``spark`` and ``dbutils.widgets.get``. Properties come from the
task's own cluster, and wheels of the task or of its environment are installed. Other libraries, Git, permissions and
the start of clusters are missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request

from tests.services.drivers import DriverState, SubmittedDrivers, words_of

_STATES: Mapping[DriverState, dict[str, str]] = {
    DriverState.RUNNING: {"life_cycle_state": "RUNNING"},
    DriverState.SUCCEEDED: {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS"},
    DriverState.FAILED: {"life_cycle_state": "TERMINATED", "result_state": "FAILED"},
    DriverState.CANCELLED: {"life_cycle_state": "TERMINATED", "result_state": "CANCELED"},
}
_NOTEBOOK = """
import sys, types
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
dbutils = types.SimpleNamespace(widgets=types.SimpleNamespace(get={parameters!r}.__getitem__))
exec(compile(open({path!r}).read(), {path!r}, "exec"))
"""


async def _run_id(request: Request) -> int:
    # The provider's triggers send the parameters of a GET in its body, which Databricks takes as well.
    return int(request.query_params.get("run_id") or (await request.json())["run_id"])


RunId = Annotated[int, Depends(_run_id)]
_OF_A_RUN = ("job_parameters", "notebook_params", "python_params")


def databricks(drivers: SubmittedDrivers, jobs: Mapping[int, dict[str, Any]] | None = None) -> FastAPI:
    """
    Return the routes of a workspace that starts these drivers.

    :param jobs: Definitions of jobs by their ids, with one task each.
    """
    app = FastAPI()
    workspace = _Workspace(drivers, jobs or {})

    @app.post("/api/{version}/jobs/runs/submit")
    def submit(run: dict[str, Any]) -> dict[str, int]:
        return {"run_id": workspace.once(run.get("idempotency_token"), run, {}, job_id=0)}

    @app.post("/api/{version}/jobs/run-now")
    def run_now(run: dict[str, Any]) -> dict[str, int]:
        job_id = int(run["job_id"])
        given = {name: run[name] for name in _OF_A_RUN if name in run}
        return {"run_id": workspace.once(run.get("idempotency_token"), workspace.jobs[job_id], given, job_id)}

    @app.get("/api/{version}/jobs/list")
    def list_jobs(name: str | None = None) -> dict[str, Any]:
        found = {key: job for key, job in workspace.jobs.items() if name in (None, job["name"])}
        return {"jobs": [{"job_id": key, "settings": job} for key, job in found.items()], "has_more": False}

    @app.get("/api/{version}/jobs/runs/get")
    def get(run_id: RunId) -> dict[str, Any]:
        state = {"state_message": "", **_STATES[drivers.state(workspace.known(run_id))]}
        task = {"task_key": "driver", "run_id": run_id, "attempt_number": 0, "start_time": 0, "state": state}
        page = f"http://databricks/runs/{run_id}"
        return {
            "run_id": run_id,
            "job_id": workspace.runs[run_id],
            "run_page_url": page,
            "state": state,
            "tasks": [task],
        }

    @app.get("/api/{version}/jobs/runs/get-output")
    def output(run_id: RunId) -> dict[str, Any]:
        return {"error": f"The driver ended as {drivers.state(workspace.known(run_id))}.", "logs": drivers.log(run_id)}

    @app.post("/api/{version}/jobs/runs/cancel")
    def cancel(run: dict[str, Any]) -> dict[str, Any]:
        drivers.cancel(workspace.known(int(run["run_id"])))
        return {}

    @app.post("/api/{version}/jobs/runs/cancel-all")
    def cancel_all(job: dict[str, Any]) -> dict[str, Any]:
        for run_id in [key for key, job_id in workspace.runs.items() if job_id == int(job["job_id"])]:
            drivers.cancel(run_id)
        return {}

    return app


@dataclass
class _Workspace:
    drivers: SubmittedDrivers
    jobs: Mapping[int, dict[str, Any]]
    runs: dict[int, int] = field(default_factory=dict)
    """Ids of jobs by runs."""
    tokens: dict[str, int] = field(default_factory=dict)

    def once(self, token: str | None, run: dict[str, Any], given: Mapping[str, Any], job_id: int) -> int:
        if token is not None and token in self.tokens:
            return self.tokens[token]
        [task] = run.get("tasks") or [run]
        run_id = self.drivers.start(self._words(run, task, given), self._installed(run, task))
        self.runs[run_id] = job_id
        if token is not None:
            self.tokens[token] = run_id
        return run_id

    def known(self, run_id: int) -> int:
        if run_id not in self.runs:
            raise HTTPException(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"Run {run_id}"})
        return run_id

    def _words(self, run: dict[str, Any], task: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
        conf = _conf(run, task)
        if "spark_submit_task" in task:
            assert task["new_cluster"]
            return list(task["spark_submit_task"]["parameters"])
        if "notebook_task" in task:
            return words_of(self._notebook(task["notebook_task"], given), conf=conf)
        script = task["spark_python_task"]
        arguments = given.get("python_params", script.get("parameters", ()))
        return words_of(script["python_file"], [_resolved(each, given) for each in arguments], conf)

    def _notebook(self, notebook: dict[str, Any], given: Mapping[str, Any]) -> str:
        of_run = given.get("notebook_params", {}) | given.get("job_parameters", {})
        parameters = notebook.get("base_parameters", {}) | of_run
        file = self.drivers.work / f"notebook-{len(self.runs)}.py"
        file.write_text(_NOTEBOOK.format(parameters=parameters, path=notebook["notebook_path"]))
        return str(file)

    def _installed(self, run: dict[str, Any], task: dict[str, Any]) -> Sequence[Path]:
        wheels = _wheels(run, task)
        if not wheels:
            return ()
        folder = self.drivers.work / f"libraries-{len(self.runs)}"
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--target", str(folder), *wheels], check=True)
        return (folder,)


def _conf(run: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    cluster = task.get("new_cluster")
    for each in run.get("job_clusters", ()):
        if each["job_cluster_key"] == task.get("job_cluster_key"):
            cluster = each["new_cluster"]
    return dict((cluster or {}).get("spark_conf", {}))


def _wheels(run: dict[str, Any], task: dict[str, Any]) -> list[str]:
    named = [each["whl"] for each in task.get("libraries", ()) if "whl" in each]
    for each in run.get("environments", ()):
        if each["environment_key"] == task.get("environment_key"):
            named += [uri for uri in each["spec"].get("dependencies", ()) if uri.endswith(".whl")]
    return [uri.removeprefix("file://") for uri in named]


def _resolved(argument: str, given: Mapping[str, Any]) -> str:
    for name, value in given.get("job_parameters", {}).items():
        argument = argument.replace(f"{{{{job.parameters.`{name}`}}}}", json.dumps(value).strip('"'))
    return argument
