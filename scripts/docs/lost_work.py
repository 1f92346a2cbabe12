"""Table of the work that jobs on services lose, from the results of their tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.docs.tables import code, table

_RESULTS = Path(__file__).parents[2] / "tests" / "services" / "results.json"
_TROUBLES = {
    "driver killed": "Driver killed",
    "driver killed, deferred": "Deferred",
    "worker killed": "Worker killed",
    "triggerer killed, deferred": "Triggerer killed",
    "driver started again, deferred": "Started again",
}


def lost_work_table() -> str:
    """Return the seconds of work that each operator lost in each trouble, and how long the whole work took."""
    results: dict[str, Any] = json.loads(_RESULTS.read_text())
    whole = [case["work_seconds"] for cases in results.values() for case in cases.values()]
    ran = {each: head for each, head in _TROUBLES.items() if any(each in cases for cases in results.values())}
    rows = [
        [code(operator.removeprefix("Checkpointed")), *(_cell(cases.get(each)) for each in ran)]
        for operator, cases in results.items()
    ]
    return f"{table(['Operator', *ran.values()], rows)}\n\nA whole job worked {min(whole):.0f} to {max(whole):.0f} s."


def _cell(case: dict[str, Any] | None) -> str:
    return "not run yet" if case is None else f"{case['lost_seconds']:.1f}"
