"""Peer of K1: ``GROUP BY`` in Flink SQL over a bounded stream of CSV, with checkpoints and state on the heap."""

from __future__ import annotations

import csv
import sys
import uuid
from pathlib import Path
from typing import Any

from benchmarks.answering import answer
from benchmarks.peers.flink_side import configuration, create_source, job_seconds


class SqlAggregate:
    """
    Query that runs over its whole input.

    :param work: Folder for checkpoints.
    """

    def __init__(self, work: Path) -> None:
        from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

        self._tables: Any = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        for name, value in configuration(work).items():
            self._tables.get_config().set(name, value)

    def run(self, *, files: str, key: str, output: str | None = None) -> dict[str, Any]:
        """
        Run the query.

        :param files: Folder with the input.
        :param key: Name of the key column.
        :param output: CSV file for the results; by default they are discarded.
        """
        name = f"t{uuid.uuid4().hex}"
        create_source(self._tables, files, name)
        query = f"select {key}, sum(price) as total, count(price) as n, max(price) as top from {name} group by {key}"
        if output is not None:
            return {"rows": _collect(self._tables.execute_sql(query), key, output)}
        nowhere = f"{key} bigint, total double, n bigint, top double"
        self._tables.execute_sql(f"create temporary table {name}_to ({nowhere}) with ('connector'='blackhole')")
        return {"seconds": job_seconds(self._tables.execute_sql(f"insert into {name}_to {query}"))}


def _collect(result: Any, key: str, output: str) -> int:
    figures: dict[int, list[Any]] = {}
    with result.collect() as rows:
        for row in rows:
            values = list(row)
            figures[values[0]] = values
    with Path(output).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([key, "total", "n", "top"])
        writer.writerows(figures.values())
    return len(figures)


def main() -> None:
    """Answer requests until standard input ends."""
    answer(SqlAggregate(Path(sys.argv[1])).run)


if __name__ == "__main__":
    main()
