"""Peer of K2: a ``KeyedProcessFunction`` of PyFlink over a bounded stream of CSV, with checkpoints."""

from __future__ import annotations

import sys
import sysconfig
import uuid
from pathlib import Path
from typing import Any

from benchmarks.answering import answer
from benchmarks.peers.flink_side import configuration, create_source, job_seconds

CACHED_STATES = 1_000_000
"""Size of the state cache. With the default of 1,000, nearly every element would read its state from the JVM."""


def _function() -> Any:
    from pyflink.common import Types  # type: ignore[import-not-found]
    from pyflink.datastream import KeyedProcessFunction  # type: ignore[import-not-found]
    from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]

    class RunningFigures(KeyedProcessFunction):  # type: ignore[misc]
        """Aggregate the figures of each key."""

        def open(self, runtime_context: Any) -> None:
            """Register the state."""
            figures = Types.TUPLE([Types.DOUBLE(), Types.LONG(), Types.DOUBLE()])
            self._figures = runtime_context.get_state(ValueStateDescriptor("figures", figures))

        def process_element(self, value: Any, ctx: Any) -> Any:
            """Add one price."""
            total, count, top = self._figures.value() or (0.0, 0, 0.0)
            self._figures.update((total + value[1], count + 1, max(top, value[1])))
            yield from ()

    return RunningFigures()


class ProcessFunction:
    """
    Job that runs over its whole input.

    :param work: Folder for checkpoints.
    :param mode: Execution mode of Python, ``process`` or ``thread``.
    """

    def __init__(self, work: Path, mode: str) -> None:
        self._settings = configuration(work) | {
            "python.execution-mode": mode,
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            # Python inside the JVM does not find the packages of a virtual environment.
            "python.pythonpath": sysconfig.get_path("purelib"),
            "python.fn-execution.bundle.size": "100000",
            "python.state.cache-size": str(CACHED_STATES),
        }

    def run(self, *, files: str, key: str) -> dict[str, Any]:
        """Run the job."""
        from pyflink.common import Configuration, Types
        from pyflink.datastream import StreamExecutionEnvironment
        from pyflink.table import StreamTableEnvironment  # type: ignore[import-not-found]

        configured = Configuration()
        for name, value in self._settings.items():
            configured.set_string(name, value)
        environment = StreamExecutionEnvironment.get_execution_environment(configured)
        tables: Any = StreamTableEnvironment.create(environment)
        name = f"t{uuid.uuid4().hex}"
        create_source(tables, files, name)
        prices = tables.to_data_stream(tables.sql_query(f"select {key} as k, price from {name}"))
        keyed = prices.key_by(lambda row: row[0], key_type=Types.LONG())
        tables.create_temporary_view(f"{name}_out", keyed.process(_function(), output_type=Types.LONG()))
        tables.execute_sql(f"create temporary table {name}_to (f0 bigint) with ('connector'='blackhole')")
        return {"seconds": job_seconds(tables.execute_sql(f"insert into {name}_to select * from {name}_out"))}


def main() -> None:
    """Answer requests until standard input ends."""
    answer(ProcessFunction(Path(sys.argv[1]), sys.argv[2]).run)


if __name__ == "__main__":
    main()
