"""What a user would submit: it says where its page is, and waits to be looked at."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext

LIMIT_SECONDS = 300


def environment_pages(spark: Any) -> str:
    """Return the pages that show what this driver was started with, the second as the first one's script reads it."""
    context = spark.sparkContext
    return (
        f"{context.uiWebUrl}/environment/\n{context.uiWebUrl}/api/v1/applications/{context.applicationId}/environment"
    )


control = Path(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
with StageContext.current(spark) as checkpoint:
    checkpoint.snapshot("numbers", lambda: spark.range(10))
    hidden = control / ".submit"
    hidden.write_text(environment_pages(spark))
    hidden.rename(control / "submit")
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (control / "release").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
