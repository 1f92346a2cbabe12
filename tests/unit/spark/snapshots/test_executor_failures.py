from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.snapshots.dataframes import explained

TRACES = {
    "package": ("ModuleNotFoundError: No module named 'airflow_provider_statecheck'", "spark.submit.pyFiles"),
    "module-of-the-package": (
        "ModuleNotFoundError: No module named 'airflow_provider_statecheck.spark'",
        "spark.submit.pyFiles",
    ),
    "fsspec": ("ModuleNotFoundError: No module named 'fsspec'", "pip install fsspec"),
    "s3fs": ("ModuleNotFoundError: No module named 's3fs'\n\nThe above", r"airflow-provider-statecheck\[s3\]"),
    "pyarrow": ("PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however", "pip install pyarrow"),
}


@pytest.mark.parametrize(("trace", "advice"), TRACES.values(), ids=TRACES.keys())
def test_a_missing_package_is_named_with_what_to_do(trace, advice):
    with pytest.raises(EnvironmentNotReadyError, match=advice) as raised, explained("s3://bucket/data"):
        raise RuntimeError(f"Job aborted\n{trace}")
    assert raised.value.package in trace.lower()


def test_what_else_went_wrong_stays_as_it_is():
    with pytest.raises(RuntimeError, match="users_module"), explained("s3://bucket/data"):
        raise RuntimeError("No module named 'users_module'")


def test_the_place_is_shown_without_its_password():
    with pytest.raises(EnvironmentNotReadyError) as raised, explained("ftp://me:planted@host/data"):
        raise RuntimeError("No module named 'fsspec'")
    assert "planted" not in str(raised.value)
