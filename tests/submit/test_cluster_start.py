"""What Spark's runner of Python starts in a driver in cluster mode, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_statecheck.hooks.spark import PYTHON_RUNNER, as_cluster_python
from airflow_provider_statecheck.spark.driver.cluster_start import arguments_of_python
from airflow_provider_statecheck.spark.driver.shipped_files import write_launcher_jar, write_package
from tests.standalone_cluster import SPARK_HOME

SCRIPT = """
import json, sys, airflow_provider_statecheck
from beside import VALUE
from pyspark import SparkContext
properties = SparkContext._jvm.java.lang.System
print("RESULT", json.dumps({
    "argv": sys.argv, "file": __file__, "name": __name__, "value": VALUE,
    "package": airflow_provider_statecheck.__file__,
    **{name: properties.getProperty(name) for name in ("spark.jars", "spark.files", "spark.submit.pyFiles")},
}))
"""


@pytest.mark.soak
def test_application_runs_with_a_verified_copy_that_executors_get_and_the_launcher_is_not_given_to_them(
    tmp_path: Path,
) -> None:
    script, working = tmp_path / "jobs of mine" / "a.py", tmp_path / "driver"
    script.parent.mkdir()
    working.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "beside.py").write_text("VALUE = 7")
    launcher, package = write_launcher_jar(tmp_path), write_package(tmp_path)
    (working / launcher.path.name).write_bytes(launcher.path.read_bytes())
    python = as_cluster_python(
        arguments_of_python(launcher, package, str(script), ["--day", ""]), py_files="/jobs/c.py", files=None, conf={}
    )
    jars = f"-Dspark.jars=file:///jobs/x.jar,file://{launcher.path}"
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-class"), PYTHON_RUNNER, *python.application_args],
        capture_output=True,
        text=True,
        cwd=working,
        check=False,
        timeout=120,
        env=os.environ
        | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
        | {"JDK_JAVA_OPTIONS": f"{jars} -Dspark.submit.pyFiles=/jobs/c.py -Dspark.files=/jobs/c.py"},
    )
    [line] = [each for each in done.stdout.splitlines() if each.startswith("RESULT ")] or [done.stderr]
    found = json.loads(line.removeprefix("RESULT "))
    copy = found.pop("package").partition(".zip/")[0] + ".zip"
    assert Path(copy).name == package.path.name
    assert Path(copy).parent != package.path.parent
    assert found == {
        "argv": [str(script), "--day", ""],
        "file": str(script),
        "name": "__main__",
        "value": 7,
        "spark.jars": "file:///jobs/x.jar",
        "spark.files": f"/jobs/c.py,{copy}",
        "spark.submit.pyFiles": f"/jobs/c.py,{copy}",
    }
