"""
The cells of the matrix: which versions run together, and which tests each of them runs.

Not the full product: each version occurs at least twice.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR = "3.2.1"
"""The oldest Airflow, with the versions that Airflow's constraint file for it pins."""
NEWEST = "newest"
"""The Airflow of ``constraints.txt``, with the versions there."""


@dataclass(frozen=True, kw_only=True)
class Spark:
    """A version of Spark."""

    version: str
    has_client: bool = True
    """Whether there is a ``pyspark-client`` of the same version, without which Spark Connect does not run."""
    is_for_airflow: bool = True
    """Whether Airflow's own environment may have it; drivers on clusters may have older ones."""
    pins: tuple[str, ...] = ()
    """Versions of other packages that this version of Spark needs."""
    needs: tuple[str, ...] = ()
    """Further packages without which it does not run."""


# Python 3.12 has no distutils, by which Spark 3.5 compares versions.
_SPARK_3_5 = Spark(
    version="3.5.9", has_client=False, is_for_airflow=False, pins=("pandas==2.3.3",), needs=("setuptools",)
)
_SPARK_4_0 = Spark(version="4.0.4")
_SPARK_4_1 = Spark(version="4.1.3")
_SPARK_4_2 = Spark(version="4.2.0")
_SPARK_4_3 = Spark(version="4.3.0", has_client=False)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Versions that run together."""

    spark: Spark
    airflow: str
    python: str

    @property
    def name(self) -> str:
        """Name of the cell, and of the folder of its environment."""
        return f"spark{self.spark.version}-airflow{self.airflow}-python{self.python}"

    @property
    def tests(self) -> tuple[str, ...]:
        """Files and folders of its tests."""
        connect = CONNECT if self.spark.has_client else ()
        return (*DRIVERS, *connect, *(AIRFLOW if self.spark.is_for_airflow else ()))


CELLS = (
    Cell(spark=_SPARK_3_5, airflow=FLOOR, python="3.11"),
    Cell(spark=_SPARK_3_5, airflow=NEWEST, python="3.12"),
    Cell(spark=_SPARK_4_0, airflow=FLOOR, python="3.13"),
    Cell(spark=_SPARK_4_0, airflow=NEWEST, python="3.11"),
    Cell(spark=_SPARK_4_1, airflow=FLOOR, python="3.11"),
    Cell(spark=_SPARK_4_1, airflow=NEWEST, python="3.13"),
    Cell(spark=_SPARK_4_2, airflow=FLOOR, python="3.13"),
    Cell(spark=_SPARK_4_2, airflow=NEWEST, python="3.12"),
    Cell(spark=_SPARK_4_3, airflow=FLOOR, python="3.11"),
    Cell(spark=_SPARK_4_3, airflow=NEWEST, python="3.13"),
)
SHORT = CELLS[2]
"""The cell of the short form: oldest Spark and Airflow of Airflow's own environment, newest Python."""

DRIVERS = (
    *(
        f"tests/spark/test_{name}.py"
        for name in (
            "context",
            "dataframe_snapshots",
            "executor_snapshots",
            "key_groups",
            "parts",
            "row_wise_plans",
            "snapshot_reading",
            "step_fingerprint",
        )
    ),
    "tests/unit/spark/test_fingerprints.py",
    "tests/unit/spark/test_item_loops.py",
    "tests/spark/sinks",
    "tests/spark/sources/test_sources.py",
    *(
        f"tests/spark/stages/test_{name}.py"
        for name in (
            "aggregate_cases",
            "broadcast",
            "canonical_savepoint",
            "columns_by_name",
            "end_of_input",
            "order_of_rows",
            "refused_columns",
            "stage",
            "state_as_data",
        )
    ),
)
"""Tests of drivers: steps, loops, parts, snapshots and stages."""
CONNECT = ("tests/connect",)
"""Tests of Spark Connect."""
AIRFLOW = (
    "tests/dags",
    "tests/unit/operators/test_checkpointed.py",
    "tests/unit/sensors",
    "tests/unit/triggers",
)
"""Tests of the operators, of the sensor, the trigger and the example Dags under Airflow."""
