"""
Runs example Dags in one process, as lines of standard input say: ``<dag_id> <date> <number that fails> <params>``.

The number is that of an increment of a stage, of a part of a step, or of an addition; with 0, none fails.

The functions of the coordinator that runs of :data:`TRACED` enter are lines of the file ``entered.txt``.

The answer to each line is the state of the run, ``refused`` if the params are not what the Dag asks for, written to the
file descriptor that is the argument. One process has one Airflow and one JVM for all of them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk.exceptions import ParamValidationError

from airflow_provider_statecheck.spark.snapshots.live_snapshots import StageSnapshots

log = logging.getLogger(__name__)

TRACED = ("example_running_balances", "example_friday_savepoint", "example_aligned_checkpoints")
"""A trace makes a run twice as long."""


def fail_once(dag: Any, number: int) -> None:
    """Let the load of an increment, the write of a part, or an addition, fail in the first try of a Dag's task."""
    [task] = dag.tasks
    if dag.dag_id == "example_aligned_checkpoints":
        delays = task.python_callable.__globals__["Delays"]
        delays.add = failing_once(delays.add, number)
    elif hasattr(task, "stage"):
        source = task.stage.input
        source.load = failing_once(source.load, number)
    else:
        StageSnapshots.write_part = failing_once(StageSnapshots.write_part, number)  # type: ignore[method-assign]


def failing_once(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    left = number

    def calling(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError("planned")
        return function(*arguments)

    return calling


class Entered:
    """Notes which functions of the coordinator are entered."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Note a call; the profiler of a thread."""
        if event == "call" and "/checkpoint/" in frame.f_code.co_filename:
            self.names.add(frame.f_code.co_qualname)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Note the calls in a block, and write the names of all so far."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            Path("entered.txt").write_text("\n".join(sorted(self.names)))


def main() -> None:
    entered = Entered()
    answers = os.fdopen(int(sys.argv[1]), "w")
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag()
    sync_bag_to_db(bag, "dags-folder", None)
    for line in sys.stdin:
        dag_id, date, failing, params = line.split(maxsplit=3)
        dag = bag.dags[dag_id]
        if int(failing):
            fail_once(dag, int(failing))
        with entered.tracing() if dag_id in TRACED else nullcontext():
            state = end_of(dag, datetime.fromisoformat(date), json.loads(params))
        sys.stdout.flush()  # the log is complete before the answer
        print(state, file=answers, flush=True)


def end_of(dag: Any, date: datetime, params: dict[str, Any]) -> str:
    try:
        return str(dag.test(logical_date=date, run_conf=params).state)
    except ParamValidationError as error:
        log.error("%s", error)
        return "refused"


main()
