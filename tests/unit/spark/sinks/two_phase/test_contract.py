"""Sinks of a user's own fulfil the contract of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_statecheck.spark.sinks.sink import Sink
from airflow_provider_statecheck.testing.sink_contract import LOG_STEPS, SinkContract, Step, transaction_steps
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink, keys_in


class TestFolderSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = (*LOG_STEPS, *transaction_steps(FolderSink))

    def sink(self, target: str, **settings: Any) -> Sink:
        return FolderSink(Path(target), **settings)

    def read(self, target: str) -> list[int]:
        return keys_in(Path(target))


class PermanentFolderSink(FolderSink):
    can_retract = False


class TestSinkThatCannotRetract(TestFolderSink):
    can_retract = False

    def sink(self, target: str, **settings: Any) -> Sink:
        return PermanentFolderSink(Path(target), **settings)
