"""Runs of the tests of a cell, and their results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from scripts.matrix.cells import Cell
from scripts.matrix.environments import ROOT

RESULTS = Path(__file__).with_name("results.json")

_VERSIONS = """
import json, platform, re, subprocess
from importlib.metadata import version
java = re.search(r'"(\\d+)', subprocess.run(["java", "-version"], capture_output=True, text=True).stderr)
print(json.dumps({
    "airflow": version("apache-airflow"), "spark": version("pyspark"), "python": platform.python_version(),
    "java": java and java[1],
}))
"""
_OUTCOMES = re.compile(r"\b(\d+) (passed|failed|error)")
_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^:]+(?::\d+)?: (.*)$", re.MULTILINE)
_CLOSING_LINE = re.compile(r"^(?:=+ )?(?:\d+ \w+|no tests ran).* in [\d.]+s.*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the tests of a cell gave."""

    spark: str
    airflow: str
    python: str
    java: str
    has_client: bool
    passed: int
    failed: int
    seconds: int
    skipped: dict[str, int] = field(default_factory=dict)
    """Reasons, and how many tests each of them left out."""


def run(cell: Cell, python: Path) -> Result:
    """
    Run the tests of a cell, and print what they print.

    :param python: The interpreter in the environment of the cell.
    """
    versions = json.loads(subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout)
    print(f"\n{cell.name}", flush=True)
    started = time.monotonic()
    command = ["sh", "scripts/run_tests", str(python), "not soak", *cell.tests]
    # The plugin of anyio that Airflow 3.2 pins warns under the newest pytest, and no test needs it.
    variables = os.environ | {"PYTEST_ADDOPTS": "-p no:anyio"}
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output = "".join(_printed(process.stdout))
    return result_of(output, versions | {"has_client": cell.spark.has_client}, round(time.monotonic() - started))


def _printed(lines: IO[str] | None) -> Iterator[str]:
    for line in lines or ():
        print(line, end="", flush=True)
        yield line


def result_of(output: str, versions: dict[str, Any], seconds: int) -> Result:
    """
    Return the result that the output of the two runs of ``scripts/run_tests`` shows.

    A run without a closing line, which broke off, counts as a failure.
    """
    closing = _CLOSING_LINE.findall(output)
    counts: Counter[str] = Counter()
    for line in closing:
        counts.update({outcome: int(count) for count, outcome in _OUTCOMES.findall(line)})
    skipped: Counter[str] = Counter()
    for count, reason in _SKIPPED.findall(output):
        skipped[reason] += int(count)
    failed = counts["failed"] + counts["error"] + max(0, 2 - len(closing))
    return Result(
        **versions, passed=counts["passed"], failed=failed, seconds=seconds, skipped=dict(sorted(skipped.items()))
    )


def recorded() -> dict[str, Result]:
    """Return the recorded results by the names of their cells."""
    if not RESULTS.exists():
        return {}
    return {name: Result(**each) for name, each in json.loads(RESULTS.read_text()).items()}


def record(results: dict[str, Result]) -> None:
    """Write results over those of the same cells."""
    merged = recorded() | results
    RESULTS.write_text(json.dumps({name: asdict(merged[name]) for name in sorted(merged)}, indent=1) + "\n")
