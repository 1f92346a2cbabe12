"""
Runs example Dags in one process, as the lines of its standard input say: ``<dag_id> <date> <increment that fails> <params>``.

The answer to each line is the state of the run, ``refused`` if the params are not what the Dag asks for, written to the file
descriptor that is the argument. One process has one Airflow and one JVM for all of them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk.exceptions import ParamValidationError

log = logging.getLogger(__name__)


def fail_once(dag: Any, increment: int) -> None:
    """Let the load of an increment fail in the first try of a Dag's stage."""
    [task] = dag.tasks
    source = task.stage.input
    source._load = failing_once(source._load, increment)


def failing_once(load: Callable[..., Any], increment: int) -> Callable[..., Any]:
    left = increment

    def loading(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError("planned")
        return load(*arguments)

    return loading


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag()
    sync_bag_to_db(bag, "dags-folder", None)
    for line in sys.stdin:
        dag_id, date, failing, params = line.split(maxsplit=3)
        dag = bag.dags[dag_id]
        if int(failing):
            fail_once(dag, int(failing))
        print(end_of(dag, datetime.fromisoformat(date), json.loads(params)), file=answers, flush=True)


def end_of(dag: Any, date: datetime, params: dict[str, Any]) -> str:
    try:
        return str(dag.test(logical_date=date, run_conf=params).state)
    except ParamValidationError as error:
        log.error("%s", error)
        return "refused"


main()
