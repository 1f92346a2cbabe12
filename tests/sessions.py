"""Sessions of the driver JVM that an operator starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.session import NEEDED_AT_START, launch_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(conf: Mapping[str, str]) -> SparkSession:
    """
    Return a session, starting the driver JVM if it is not running.

    :param conf: Spark settings.
    """
    from pyspark.sql import SparkSession

    launch_jvm(conf)
    # The JVM has resolved its start settings, for instance packages to jars; setting them again would undo this.
    late: dict[str, Any] = {k: v for k, v in conf.items() if k not in NEEDED_AT_START or k == "spark.master"}
    return SparkSession.builder.config(map=late).getOrCreate()
