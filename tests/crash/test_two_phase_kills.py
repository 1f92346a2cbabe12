"""A two-phase sink of a user's own, whose driver is killed between any two steps."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from tests.crash.sink_suite import SinkKills
from tests.unit.spark.sinks.two_phase.folder_sink import shown_in

pytestmark = pytest.mark.spark


class TestTwoPhaseSinkKills(SinkKills):
    factory = "tests.crash.sink_two_phase_factory:make"
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.write_log", "sink.commit_transaction")

    @staticmethod
    def read(work: Path) -> pa.Table:
        found = shown_in(work / "output")
        assert found is not None
        return found
