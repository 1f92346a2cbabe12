"""
A stand-in for Apache Livy.

It answers what the provider's hooks ask: ``POST /batches``, ``GET`` and ``DELETE /batches/{id}``, and
``GET /batches/{id}/state`` and ``/log``. It has batches only, in the states ``running``, ``success``, ``dead`` and, for
a moment, ``killed``; it knows neither users nor queues, and its clusters are as large as this machine.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query

from tests.services.drivers import DriverState, SubmittedDrivers, words_of

_STATES = {
    DriverState.RUNNING: "running",
    DriverState.SUCCEEDED: "success",
    DriverState.FAILED: "dead",
    DriverState.CANCELLED: "killed",
}
_NOT_SUPPORTED = ("className", "jars", "archives", "proxyUser")


def livy(drivers: SubmittedDrivers) -> FastAPI:
    """Return the routes of a server that starts these drivers."""
    app = FastAPI()
    deleted: set[int] = set()

    def batch_of(number: int) -> dict[str, Any]:
        if number in deleted:
            raise HTTPException(404, {"msg": f"Session '{number}' not found."})
        return {"id": number, "appId": f"local-{number}", "state": _STATES[drivers.state(number)], "log": []}

    @app.post("/batches", status_code=201)
    def submit(batch: dict[str, Any]) -> dict[str, Any]:
        if found := [name for name in _NOT_SUPPORTED if name in batch]:
            raise HTTPException(400, {"msg": f"This stand-in has no {found}."})
        words = words_of(batch["file"], batch.get("args", ()), batch.get("conf"), batch.get("pyFiles", ()))
        return batch_of(drivers.start(words))

    @app.get("/batches/{number}")
    def batch(number: int) -> dict[str, Any]:
        return batch_of(number)

    @app.get("/batches/{number}/state")
    def state(number: int) -> dict[str, Any]:
        return {"id": number, "state": batch_of(number)["state"]}

    @app.get("/batches/{number}/log")
    def log(number: int, start: Annotated[int, Query(alias="from")] = 0, size: int = 100) -> dict[str, Any]:
        lines = drivers.log(number).splitlines()
        return {"id": number, "from": start, "total": len(lines), "log": lines[start : start + size]}

    @app.delete("/batches/{number}")
    def delete(number: int) -> dict[str, Any]:
        batch_of(number)
        drivers.cancel(number)
        deleted.add(number)
        return {"msg": "deleted"}

    return app
