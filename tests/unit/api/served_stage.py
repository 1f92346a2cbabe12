"""A stage whose state is served over HTTP."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.sqlite_rows import new_engine
from tests.unit.api.server import ApiServer
from tests.written_state import BACKENDS, StatefulJob

COMPOSITE = KeySerializer((KeyField("shop", pa.string()), KeyField("day", pa.date32()), KeyField("till", pa.int64())))
RECEIPT = ("center", date(2026, 1, 31), 7)
DESCRIPTORS = [
    ValueStateDescriptor("balance", int, queryable_name="balances"),
    ValueStateDescriptor("total", int, queryable_name="totals[eu]/net 100%"),
    MapStateDescriptor("prices", str, int, queryable_name="prices"),
    ValueStateDescriptor("internal", int),
]


class ServedStage:
    """A stage with state, and the API that serves it to a read token."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.storage = CheckpointStorage.open((folder / "checkpoints").as_uri())
        self.api = ApiServer(new_engine(folder / "served.db"), **settings)
        self.stages: list[QueriedStage] = []
        self.stage = self.make("sales", DESCRIPTORS)
        self.token = self.api.reading_token(self.stage.job_id)

    def make(self, job_name: str, descriptors: list[Any], **values: Any) -> QueriedStage:
        """Return a stage that has begun."""
        written = StatefulJob(self.storage, BACKENDS["arrow"](), descriptors, job_name=job_name, **values)
        stage = QueriedStage(SqlJobStore(self.api.engine, self.api.clock), (written,), num_retained=2)
        self.stages.append(stage)
        stage.begin()
        return stage

    def path(self, name: str = "", *, job_id: str | None = None, **query: Any) -> str:
        """Return the path of the list of names, or of a name."""
        place = f"/{quote(name, safe='')}" if name else ""
        asked = f"?{urlencode(query, doseq=True)}" if query else ""
        return f"/v1/jobs/{job_id or self.stage.job_id}/state{place}{asked}"

    def get(self, name: str = "", token: str | None = None, **query: Any) -> Any:
        return self.api.call("GET", self.path(name, **query), token or self.token)

    def post(self, name: str, body: Any, **query: Any) -> Any:
        return self.api.call("POST", self.path(name, **query), self.token, body)

    def close(self) -> None:
        for stage in self.stages:
            stage.close()
        self.api.engine.dispose()


def refused(response: Any, status: int, code: str) -> str:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return str(response.json()["message"])
