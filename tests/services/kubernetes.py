"""
A stand-in for the API of Kubernetes with the Spark operator.

It answers what the provider's operator asks: a ``SparkApplication`` is created, read with its status and deleted, and
its driver's pod is listed by labels and phase, read, patched with labels, and its log followed; events are an empty
list. The driver runs on this machine with the properties, files and arguments of the specification, and the pod is
running as soon as the application is created. Images, volumes, executors' pods and restarts by the Spark operator are
missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import StreamingResponse

from tests.services.drivers import DriverState, SubmittedDrivers, words_of

_APPLICATIONS = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications"
_PODS = "/api/v1/namespaces/{namespace}/pods"
_PHASES = {DriverState.RUNNING: "Running", DriverState.SUCCEEDED: "Succeeded"}
_STATES = {DriverState.RUNNING: "RUNNING", DriverState.SUCCEEDED: "COMPLETED"}
_STARTED = "2026-01-01T00:00:00Z"


@dataclass
class _Application:
    body: dict[str, Any]
    number: int
    labels: dict[str, str]
    """Of the driver's pod."""


def kubernetes(drivers: SubmittedDrivers) -> FastAPI:
    """Return the routes of a cluster that starts these drivers."""
    app = FastAPI()
    applications: dict[str, _Application] = {}

    def known(name: str) -> _Application:
        if name not in applications:
            raise HTTPException(404, f"{name} not found")
        return applications[name]

    def pod_of(application: _Application) -> dict[str, Any]:
        return _pod(application, drivers.state(application.number))

    @app.post(_APPLICATIONS, status_code=201)
    def create(body: dict[str, Any]) -> dict[str, Any]:
        spec, name = body["spec"], body["metadata"]["name"]
        if name in applications:
            raise HTTPException(409, f"{name} exists")
        labels = {**spec["driver"].get("labels", {}), "spark-role": "driver"}
        applications[name] = _Application(body, drivers.start(_words(spec)), labels)
        return body

    @app.get(_APPLICATIONS + "/{name}/status")
    def status(name: str) -> dict[str, Any]:
        found = known(name)
        return {**found.body, "status": {"applicationState": {"state": _state(drivers.state(found.number))}}}

    @app.delete(_APPLICATIONS + "/{name}")
    def delete(name: str) -> dict[str, Any]:
        drivers.cancel(known(name).number)
        del applications[name]
        return {"status": "Success"}

    @app.get(_PODS)
    def pods(
        labels: Annotated[str, Query(alias="labelSelector")] = "",
        fields: Annotated[str, Query(alias="fieldSelector")] = "",
    ) -> dict[str, Any]:
        found = [pod_of(each) for each in applications.values()]
        fit = [each for each in found if _has(each["metadata"]["labels"], labels) and _has(_fields(each), fields)]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": fit}

    @app.get(_PODS + "/{name}")
    def pod(name: str) -> dict[str, Any]:
        return pod_of(known(name.removesuffix("-driver")))

    @app.patch(_PODS + "/{name}")
    def patch(name: str, body: dict[str, Any]) -> dict[str, Any]:
        found = known(name.removesuffix("-driver"))
        found.labels |= body["metadata"]["labels"]
        return pod_of(found)

    @app.get(_PODS + "/{name}/log")
    def log(name: str, follow: bool = False) -> StreamingResponse:
        number = known(name.removesuffix("-driver")).number
        return StreamingResponse(_lines(drivers, number, follow), media_type="text/plain")

    @app.get("/api/v1/namespaces/{namespace}/events")
    def events() -> dict[str, Any]:
        return {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []}

    return app


def _words(spec: dict[str, Any]) -> list[str]:
    script = spec["mainApplicationFile"].removeprefix("local://")
    files = (spec.get("deps") or {}).get("pyFiles", ())
    return words_of(script, spec.get("arguments", ()), spec.get("sparkConf"), files)


def _state(state: DriverState) -> str:
    return _STATES.get(state, "FAILED")


def _pod(application: _Application, state: DriverState) -> dict[str, Any]:
    metadata = application.body["metadata"]
    is_running = state is DriverState.RUNNING
    end = {"exitCode": int(state is not DriverState.SUCCEEDED), "startedAt": _STARTED, "finishedAt": _STARTED}
    container = {"name": "spark-kubernetes-driver", "image": "spark"}
    container_state = {"running": {"startedAt": _STARTED}} if is_running else {"terminated": end}
    ready = {"ready": is_running, "restartCount": 0, "imageID": "spark", "state": container_state}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{metadata['name']}-driver",
            "namespace": metadata["namespace"],
            "labels": application.labels,
            "creationTimestamp": _STARTED,
        },
        "spec": {"containers": [container], "nodeName": "node"},
        "status": {
            "phase": _PHASES.get(state, "Failed"),
            "startTime": _STARTED,
            "containerStatuses": [container | ready],
        },
    }


def _fields(pod: dict[str, Any]) -> dict[str, str]:
    return {"status.phase": pod["status"]["phase"]}


def _has(values: dict[str, str], selector: str) -> bool:
    return all(_fits(values, each) for each in selector.split(",") if each)


def _fits(values: dict[str, str], term: str) -> bool:
    if term.startswith("!"):
        return term[1:] not in values
    if "!=" in term:
        name, _, value = term.partition("!=")
        return values.get(name) != value
    name, _, value = term.partition("=")
    return values.get(name) == value


def _lines(drivers: SubmittedDrivers, number: int, is_followed: bool) -> Iterator[str]:
    sent = 0
    while True:
        is_running = drivers.state(number) is DriverState.RUNNING
        lines = drivers.log(number).splitlines()
        for line in lines[sent:]:
            yield f"{datetime.now(UTC).isoformat()} {line}\n"
        sent = len(lines)
        if not (is_followed and is_running):
            return
        time.sleep(0.2)
