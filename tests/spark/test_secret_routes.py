"""
A secret in the errors of a driver without Airflow, looked for in its log, rows, files and the jobs that Spark shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE, Handover, begin_submitted
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from tests import leaks
from tests.messages import make_registration
from tests.shared_spark import CONF
from tests.spark.conftest import child_environment

SECRET = 'c0rrect/h0rse"ü+b@ttery'
DRIVER = """
import json, logging, os
from urllib.parse import quote

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext

logging.basicConfig(level=logging.INFO)
logging.getLogger("airflow_provider_statecheck").setLevel(logging.DEBUG)
folder, secret, settings = os.environ["FOLDER"], os.environ["CANARY"], json.loads(os.environ["SPARK_CONF"])
events = {"enabled": "true", "dir": f"file://{folder}/events", "compress": "false"}
settings |= {f"spark.eventLog.{name}": value for name, value in events.items()} | {"spark.my.password": secret}
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
options = {"checkpoint_dir": f"{folder}/checkpoints", "metadata": f"sqlite:///{folder}/rows.db", "job": "job"}
if os.environ["GIVEN"] == "storage":
    options["storage_options"] = {"password": secret}


def rate(rows):
    raise ValueError(f"cannot log in with {secret} or {secret!r} or {json.dumps(secret)} or {quote(secret, safe='')}")


try:
    with StageContext.open(spark, **options) as checkpoint:
        numbers = checkpoint.snapshot("numbers", lambda: spark.range(3).coalesce(1))
        checkpoint.snapshot("rated", lambda: rate(numbers))
except ValueError:
    print("ended")  # Python would write the error of the program itself as it is
spark.stop()
"""


@pytest.mark.parametrize("given", ["storage", pytest.param("setting", marks=pytest.mark.soak)])
def test_a_driver_tells_no_secret_that_it_was_given(tmp_path: Path, given: str) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = child_environment(tmp_path, FOLDER=str(tmp_path), CANARY=SECRET, GIVEN=given)
    environment["SPARK_CONF"] = json.dumps(CONF)

    command = [sys.executable, str(tmp_path / "driver.py")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=600, check=False)

    assert done.stdout.strip().endswith(b"ended"), done.stderr.decode()
    rows = [leaks.Place(path.name, path.read_bytes()) for path in tmp_path.glob("rows.db*")]
    events, files = list(leaks.files(tmp_path / "events")), list(leaks.files(tmp_path / "checkpoints"))
    assert events
    assert files
    assert any(b"cannot log in with ***" in place.content for place in rows)
    log = leaks.Place("log of the driver", done.stdout + done.stderr)
    assert b"retains" in log.content
    assert leaks.find([SECRET], [log, *rows, *events, *files]) == []


def test_python_workers_of_a_local_driver_do_not_inherit_the_token(spark: Any, tmp_path: Path) -> None:
    """They get the environment of the JVM, which still has it."""
    registration = make_registration(storage_base=tmp_path.as_uri())
    handover = Handover(url="http://me@no-server", token="a token", registration=registration, driver=DriverSettings())
    context = spark.sparkContext
    try:
        with pytest.raises(InvalidConfigurationError):
            begin_submitted(handover, spark)
        seen = context.parallelize([0], 1).map(lambda _: os.environ.get(HANDOVER_VARIABLE)).collect()
    finally:
        context.environment.pop(HANDOVER_VARIABLE)
    assert seen == [""], "None would be the environment of this JVM, which was started without a handover"
