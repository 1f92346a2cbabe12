"""What a remote Spark needs before a stage begins: this package, and a checkpoint directory that everybody sees."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.driver.package_zip import write_package
from airflow_provider_statecheck.spark.driver.sessions import runs_in_this_process
from airflow_provider_statecheck.spark.driver.shared_path import require_shared_path
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_ready(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Prepare a session for a stage; nothing is to be done where all of Spark runs in this process.

    :param spark: The session, of a Spark Connect server or of a driver in this process.
    :param storage: Where the stage's bytes will go.
    :raises EnvironmentNotReadyError: if the storage is a path that not everybody sees.
    """
    if not runs_in_this_process(spark):
        ship_package(spark)
    require_reachable(spark, storage)


def require_reachable(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Refuse a checkpoint directory that not every part of Spark sees.

    :raises EnvironmentNotReadyError: saying who does not, and what to do.
    """
    if storage.is_local and not runs_in_this_process(spark):
        require_shared_path(spark, storage.base_uri)


def ship_package(spark: SparkSession) -> None:
    """Give the executors this package; its file's name carries a hash, for a server refuses other bytes under a known one."""
    spark.addArtifacts(str(write_package(Path(_lasting_folder().name))), pyfile=True)


@functools.cache
def _lasting_folder() -> tempfile.TemporaryDirectory[str]:
    # A driver in this process serves the file from where it lies, also to executors that come later.
    return tempfile.TemporaryDirectory(prefix="statecheck-")
