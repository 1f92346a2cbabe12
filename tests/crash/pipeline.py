"""A small stage with every kind of step, which writes down what it really computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.gateway.verbs import retrying
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_gateway, faulty_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB, UID = "crash", "stage"


def open_attempt(
    work: Path,
    plan: FaultPlan,
    job: str,
    *,
    clear_marker: str = "0/0",
    num_retained: int = 1,
    driver: DriverSettings | None = None,
    **settings: Any,
) -> StageAttempt:
    """Begin an attempt whose storage and gateway fail as planned."""
    storage = CheckpointStorage.open(str(work / "checkpoints"))
    engine = open_engine(f"sqlite:///{work}/state.db")
    gateway = faulty_gateway(AttemptCoordinator(SqlJobStore(engine)), plan)
    if plan.mode is FaultMode.REPLY_LOST:
        # A real client repeats a call whose reply was lost; the other modes must do without.
        gateway = retrying(gateway, pauses_seconds=(0.0,))
    owner = AttemptOwner(
        logical_task=f"crash/{job}", run_key="run", run_id="run", clear_marker=clear_marker, label="crash test"
    )
    registration = RegisterAttempt(
        job_name=job,
        uid=UID,
        attempt_key=new_key(),
        owner=owner,
        storage_base=storage.base_uri,
        num_retained=num_retained,
        **settings,
    )
    config = (driver or DriverSettings()).storage_config
    return StageAttempt(gateway, faulty_storage(storage, plan), registration, storage_config=config)


def open_stage(spark: SparkSession, work: Path, plan: FaultPlan) -> StageContext:
    """Begin a try of a stage."""
    return StageContext(spark, open_attempt(work, plan, JOB))


def run(spark: SparkSession, work: Path, plan: FaultPlan, fail_at: int | None = None) -> dict[str, Any]:
    """Run the stage to its end and return its result."""

    def computed(what: str) -> None:
        with (work / "computed.log").open("a") as log:
            log.write(f"{what}\n")

    with open_stage(spark, work, plan) as checkpoint:

        def numbers() -> Any:
            computed("numbers")
            return spark.range(40).withColumnRenamed("id", "a.b").coalesce(1)

        source = checkpoint.snapshot("numbers", numbers)
        checkpoint.state.setdefault("sums", {})
        for item in checkpoint.each("items", [1, 2]):
            computed(f"item {item}")
            if item == fail_at:
                raise RuntimeError("planned")

            def multiples(item: int = item) -> Any:
                computed(f"multiples {item}")
                return source.where(source["`a.b`"] % (item + 1) == 0).coalesce(1)

            # One item keeps its DataFrame, the other does not need to.
            rows = checkpoint.snapshot("multiples", multiples, when=item == 2).collect()
            checkpoint.state["sums"] = {**checkpoint.state["sums"], item: sum(row["a.b"] for row in rows)}
        total = sorted(row["a.b"] for row in source.collect())
        return {"sums": {str(k): v for k, v in checkpoint.state["sums"].items()}, "rows": total}


def computed_steps(work: Path) -> list[str]:
    """Return what was computed so far, over all tries."""
    log = work / "computed.log"
    return log.read_text().split("\n")[:-1] if log.exists() else []


def write_result(work: Path, result: dict[str, Any], plan: FaultPlan) -> None:
    """Keep what a try gave for the process that watches."""
    (work / "result.json").write_text(json.dumps({"result": result, "calls": plan.calls}))
