"""
Runs the Python blocks of pages, with one Spark, and writes down what became of each.

``python -m tests.docs.runner <folder> <page>...``; the blocks of a page run in their order in one namespace, which has
what every page takes for granted: ``spark``, a new ``checkpoint`` for each block, and a folder ``/data`` with some
events in it. A block that makes a Dag is loaded by Airflow and run, if a local Spark is all that it needs; a block that
asks for ``StageContext.current`` is an application, which is submitted.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks_of, name_of, runs_alone

CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
RESULTS = "results.json"
MARK = "--- "

ROOTED = re.compile(r"(?<![\w.-])/(?=(?:data|tmp|opt)/)")
"""The slash before a folder that is one of the root of the filesystem to readers of a page."""
_SUBMITTING = """
from datetime import UTC, datetime
from airflow.sdk import dag
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator

@dag(dag_id={dag_id!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def submitting():
    CheckpointedSparkSubmitOperator(
        task_id="application", application={application!r}, conn_id="spark_local", driver_memory="512m",
        conf={{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}},
    )

submitting()
"""


def is_dag(block: Block) -> bool:
    return "@dag" in block.code


def is_application(block: Block) -> bool:
    return "StageContext.current(" in block.code


class Runner:
    """
    One Spark, one Airflow, one folder for everything that the pages write.

    :param work: The folder; it takes the place of the root of the filesystem.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self._stages = ExitStack()

    def run(self, page: Path) -> list[dict[str, Any]]:
        """Run a page's blocks and return what became of each; those after a failed one are not run."""
        blocks = [block for block in blocks_of(page) if runs_alone(block)]
        namespace: dict[str, Any] = {"__name__": "page"}
        results: list[dict[str, Any]] = []
        with self._stages:
            for block in blocks:
                error = self._error_of(block, namespace)
                results.append({"block": block.name, "error": error})
                if error is not None:
                    break
        return results

    def _error_of(self, block: Block, namespace: dict[str, Any]) -> str | None:
        print(f"{MARK}{block.name}", flush=True)  # noqa: T201 - divides what is printed
        try:
            self._try(block, namespace)
        except (Exception, SystemExit):
            return traceback.format_exc()
        return None

    def _try(self, block: Block, namespace: dict[str, Any]) -> None:
        if is_dag(block):
            self._run_dag(self._write("dags", block, self._here(block.code)))
        elif is_application(block):
            application = self._write("opt", block, self._here(block.code))
            dag = _SUBMITTING.format(dag_id=application.stem, application=str(application))
            self._run_dag(self._write("dags", block, dag))
        else:
            self._give(namespace, block)
            code = "\n" * block.line + self._here(textwrap.dedent(block.code))
            known = set(namespace)
            # Without this module's own __future__, which readers of a page do not have.
            exec(compile(code, str(block.page), "exec", dont_inherit=True), namespace)
            _build_tasks({name: value for name, value in namespace.items() if name not in known})

    def _give(self, namespace: dict[str, Any], block: Block) -> None:
        from airflow_provider_statecheck import StageContext
        from tests.sessions import start_session

        spark = start_session(CONF)
        metadata, folder = f"sqlite:///{self.work}/given.db", str(self.work / "given")
        given = StageContext.open(spark, job=block.name, checkpoint_dir=folder, metadata=metadata)
        # Open until the page's end, for its DataFrames may be used in the blocks that follow.
        self._stages.callback(given.finish)
        namespace.update(spark=spark, checkpoint=given)

    def _run_dag(self, file: Path) -> None:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.serialization.serialized_objects import DagSerialization

        bag = DagBag(dag_folder=str(file))
        assert bag.import_errors == {}, bag.import_errors
        assert bag.dags, f"{file} makes no Dag"
        for dag in bag.dags.values():
            for task in dag.tasks:
                task.retries = 0  # what fails is to fail at once
            DagSerialization.from_dict(DagSerialization.to_dict(dag))
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(bag, "dags-folder", None)
        for dag in bag.dags.values():
            if _is_runnable(dag):
                run = dag.test(logical_date=datetime(2026, 1, 1, tzinfo=UTC))
                assert run.state == "success", f"the run of Dag {dag.dag_id} ended as {run.state}"

    def _write(self, folder: str, block: Block, code: str) -> Path:
        path = self.work / folder / f"{re.sub(r'[^a-z0-9]+', '_', block.name.lower())}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
        return path

    def _here(self, code: str) -> str:
        return ROOTED.sub(f"{self.work}/", code)


def _build_tasks(namespace: dict[str, Any]) -> None:
    """Call the decorated tasks that a block leaves to the reader's own Dag."""
    from airflow.sdk import DAG
    from airflow.sdk.bases.decorator import _TaskDecorator
    from airflow.serialization.serialized_objects import DagSerialization

    tasks = [value for value in namespace.values() if isinstance(value, _TaskDecorator)]
    with DAG("reader", schedule=None) as dag:
        for task in tasks:
            task()
    assert len(DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_ids) == len(tasks)


def _is_runnable(dag: Any) -> bool:
    from airflow_provider_statecheck import CheckpointedPySparkOperator, CheckpointedSparkSubmitOperator

    def has_spark(task: Any) -> bool:
        is_local = isinstance(task, CheckpointedPySparkOperator) and task.conn_id is None
        return is_local or (isinstance(task, CheckpointedSparkSubmitOperator) and task._conn_id == "spark_local")

    return all(has_spark(task) for task in dag.tasks)


def write_events(work: Path) -> None:
    """Make the table that the pages read, and its copy to which a page appends."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    days = [f"2026-01-0{day}" for day in (1, 2, 3)]
    for name in ("events", "clicks"):
        folder = work / "data" / name
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"user_id": list(range(9)), "day": days * 3}), folder / "part-0.parquet")


def main(work: Path, pages: list[Path]) -> None:
    for folder in ("tmp", "opt", "dags"):
        (work / folder).mkdir()
    write_events(work)
    os.chdir(work)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("airflow_provider_statecheck").setLevel(logging.INFO)
    runner = Runner(work)
    (work / RESULTS).write_text(json.dumps({name_of(page): runner.run(page) for page in pages}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(page) for page in sys.argv[2:]])
