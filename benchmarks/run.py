"""
Run the benchmarks and write ``benchmarks/results/*.json`` and the table and chart of ``docs/reference/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    c1_coordinator,
    c2_scale,
    c3_version_check,
    d1_import,
    file_merging,
    g1_growth,
    i1_incremental,
    i2_amplification,
    k1_keyed_aggregate,
    k2_keyed_function,
    m1_memory,
    o1_overhead,
    plots,
    q1_point_lookup,
    q2_state_over_http,
    r1_retry,
    r2_restore,
    r3_step,
    s1_snapshot,
    t1_triggerer,
    u1_job_list,
    w1_state_reader,
)
from benchmarks.measure import Result

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"
CHART = PAGE.with_suffix(".svg")
MARK = "<!-- results -->"
WORKLOADS: dict[str, Callable[..., list[Result]]] = {
    "K1": k1_keyed_aggregate.run,
    "K2": k2_keyed_function.run,
    "S1": s1_snapshot.run,
    "D1": d1_import.run,
    "C1": c1_coordinator.run,
    "C2": c2_scale.run,
    "C3": c3_version_check.run,
    "F1": file_merging.run,
    "I1": i1_incremental.run,
    "I2": i2_amplification.run,
    "M1": m1_memory.run,
    "O1": o1_overhead.run,
    "G1": g1_growth.run,
    "Q1": q1_point_lookup.run,
    "Q2": q2_state_over_http.run,
    "R1": r1_retry.run,
    "R2": r2_restore.run,
    "R3": r3_step.run,
    "T1": t1_triggerer.run,
    "U1": u1_job_list.run,
    "W1": w1_state_reader.run,
}
LONG_IF_SMALL = ("R1", "R3")
"""Workloads dominated by start times, which the quick run skips unless they are named."""


def main() -> None:
    """Measure the selected workloads and print whether the goals are met."""
    arguments = _arguments()
    names = arguments.only.split(",") if arguments.only else _all_names(quick=arguments.quick)
    lines: list[str] = []
    for name in names:
        # Each workload has its own folder, which is deleted to free the disk for the next one.
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"statecheck-bench-{name}-") as folder:
            results = WORKLOADS[name](Path(folder), quick=arguments.quick)
        print(f"{name} took {time.monotonic() - begin:.0f} s", flush=True)
        lines.extend(result.line() for result in results)
        if not arguments.quick:
            _write_results(name, results)
    if not arguments.quick:
        _write_page()
    print("\n".join(lines))


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="ids separated by commas")
    parser.add_argument("--quick", action="store_true", help="use small sizes and do not write results")
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.only.split(","))) - WORKLOADS.keys()
    if unknown:
        parser.error(f"expected ids out of {', '.join(WORKLOADS)}, found {', '.join(sorted(unknown))}")
    return arguments


def _all_names(*, quick: bool) -> list[str]:
    return [name for name in WORKLOADS if not quick or name not in LONG_IF_SMALL]


def _write_results(name: str, results: list[Result]) -> None:
    content = json.dumps([result.as_json() for result in results], indent=1)
    (HERE / "results" / f"{name}.json").write_text(content + "\n")


def _write_page() -> None:
    files = sorted((HERE / "results").glob("*.json"))
    results = [result for file in files for result in json.loads(file.read_text())]
    rows = ["| id | case | ours | peer | ratio | goal |", "|---|---|---|---|---|---|", *map(_row, results)]
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{before}{MARK}\n\n" + "\n".join(rows) + "\n")
    CHART.write_text(plots.chart(results))


def _row(result: dict[str, Any]) -> str:
    values = f"{result['ours']:,.4g} {result['unit']} | {result['peer']:,.4g} {result['unit']}"
    goal = "none" if result["goal"] is None else f"{result['goal']:.2f} {'met' if result['met'] else 'not met'}"
    return f"| {result['id']} | {result['case']} | {values} | {result['ratio']:.2f} | {goal} |"


if __name__ == "__main__":
    main()
