"""Drivers with a Delta sink end between any two steps: the table is that of an undisturbed run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typing_extensions import override

from tests.crash.delta_factory import TABLE
from tests.crash.sink_suite import SinkKills

pytestmark = pytest.mark.spark


class TestDeltaSinkKills(SinkKills):
    factory: ClassVar[str] = "tests.crash.delta_factory:make"
    # The second: it has looked at the table, and waits before its version is written.
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.commit")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        return pa.table(DeltaTable(str(work / TABLE)).to_pyarrow_table())
