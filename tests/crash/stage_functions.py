"""Parts of a stage that end its driver in the midst of a task, as Spark's tasks import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import FileDestination
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import ParquetSinkWriter, TargetFiles
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from airflow_provider_statecheck.testing.faults import STORAGE_CALLS, Counted, FaultPlan

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.functions.contexts import RuntimeContext

QUANTITY: ValueStateDescriptor[int] = ValueStateDescriptor("quantity", int, 0)
MODES: MapStateDescriptor[int] = MapStateDescriptor("modes", str, int)
_TARGET_CALLS = (*STORAGE_CALLS, "size", "_call")

_passed: set[tuple[int, int]] = set()
"""Items after which this process waits to end a driver until output is staged."""


@dataclass(frozen=True, slots=True)
class DriverKill:
    """
    The end of one driver.

    :param driver: Its process.
    :param item: Order and line at which it comes.
    :param is_late: Whether it waits until the task has written all of its state and output.
    """

    driver: int
    item: tuple[int, int]
    is_late: bool

    def passed(self, item: tuple[int, int]) -> None:
        """Take notice of an item."""
        if item == self.item:
            _passed.add(item)
            if not self.is_late:
                self.carry_out()

    def written(self) -> None:
        """Take notice that a task has written everything."""
        if self.item in _passed:
            self.carry_out()

    def carry_out(self) -> None:
        """End the driver, unless it has ended."""
        _passed.discard(self.item)
        with suppress(ProcessLookupError):
            os.kill(self.driver, signal.SIGKILL)


class OrderedQuantity(KeyedProcessFunction[int, Any, Any]):
    """Gives after each item how much of its part was ordered so far, and how often it went the same way."""

    def __init__(self, kill: DriverKill | None = None) -> None:
        self.kill = kill

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        self.quantity = runtime_context.get_state(QUANTITY)
        self.modes = runtime_context.get_map_state(MODES)

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if self.kill is not None:
            self.kill.passed((value.l_orderkey, value.l_linenumber))
        quantity = (self.quantity.value() or 0) + int(value.l_quantity)
        same = (self.modes.get(value.l_shipmode) or 0) + 1
        self.quantity.update(quantity)
        self.modes.put(value.l_shipmode, same)
        yield value.l_partkey, value.l_suppkey, value.l_orderkey, value.l_linenumber, quantity, same


class CountedSink(ParquetSink):
    """A sink whose driver can meet a fault at each of its calls on storage, and whose tasks can end the driver."""

    def __init__(self, path: str, plan: FaultPlan, kill: DriverKill | None) -> None:
        super().__init__(path)
        self._plan: FaultPlan | None = plan
        self._kill = kill

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plan": None}

    @override
    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        return KillingWriter(super().writer(context), self._kill)  # type: ignore[return-value] # it passes everything on

    @override
    def _destination(self, context: SinkContext) -> FileDestination:
        if self._plan is None:
            return super()._destination(context)
        files = TargetFiles.open(self.path, context.lineage, {})
        storage: Any = Counted(files.storage, self._plan, _TARGET_CALLS, StorageError)
        with patch.object(TargetFiles, "open", return_value=replace(files, storage=storage)):
            destination = super()._destination(context)
        self._files = files
        return destination


class KillingWriter:
    """A writer that ends the driver when everything is written and nothing is reported."""

    def __init__(self, writer: ParquetSinkWriter, kill: DriverKill | None) -> None:
        self._writer = writer
        self._kill = kill

    def write(self, table: Any) -> None:
        """Take a table."""
        self._writer.write(table)

    def prepare_commit(self) -> Sequence[Mapping[str, Any]]:
        """Finish all files."""
        committables = self._writer.prepare_commit()
        if self._kill is not None:
            self._kill.written()
        return committables

    def abort(self) -> None:
        """Delete what was written."""
        self._writer.abort()
