"""Savepoints over HTTP, for a task of a maintenance Dag."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.checkpoint.messages import (
    BeginSavepoint,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.requests import SnapshotRequest
from airflow_provider_statecheck.gateway.reply import read_reply
from airflow_provider_statecheck.hooks.maintenance_http import MaintenanceCalls


class HttpSavepoints:
    """
    A ``SavepointGateway`` over HTTP.

    :param calls: The server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def request(self, request: RequestSavepoint) -> SnapshotRequest:
        """Ask for a savepoint of an operator."""
        return read_reply(SnapshotRequest, self._post("request", request))

    def begin(self, request: BeginSavepoint) -> CheckpointRecord:
        """Draw the id of a savepoint that is copied from the newest checkpoint of an operator that does not run."""
        return read_reply(CheckpointRecord, self._post("begin", request))

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """Say that such a savepoint is written, or why it cannot be."""
        return read_reply(CheckpointRecord, self._post("end", request))

    def dispose(self, request: DisposeSavepoint) -> DisposedSavepoint:
        """Give a savepoint up; its bytes may go."""
        return read_reply(DisposedSavepoint, self._post("dispose", request))

    def _post(self, verb: str, request: Any) -> Any:
        return self._calls.ask("POST", f"savepoints/{verb}", request)
