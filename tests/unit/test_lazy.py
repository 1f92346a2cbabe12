from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet
import pytest

from airflow_provider_statecheck import lazy
from tests.unit.interpreter import modules_loaded_by


def test_names_stand_for_the_modules():
    assert lazy.pa.Table is pa.Table
    assert lazy.pc.equal is pa.compute.equal
    assert lazy.parquet.ParquetFile is pyarrow.parquet.ParquetFile
    with pytest.raises(AttributeError, match="no_such_name"):
        lazy.np.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_modules_are_loaded_at_the_first_use():
    load = "from airflow_provider_statecheck.lazy import np, pa, parquet, pc"
    assert not {"numpy", "pyarrow"} & modules_loaded_by(load)
    assert "pyarrow.compute" in modules_loaded_by(f"{load}; pc.equal")


def test_names_can_be_pickled_with_a_function():
    """Spark pickles functions of scripts by value, with the global names that they use."""
    assert pickle.loads(pickle.dumps(lazy.pa)).Table is pa.Table
