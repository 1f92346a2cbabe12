"""How many tasks run at once, from the settings of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.spark.driver.session import cores_of


def session(default: int, **settings: str) -> Any:
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=default))


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"spark_master": "local[3]"}, 3),
        ({"spark_master": "local[2,3]"}, 2),
        ({"spark_master": "local[*]"}, 200),
        ({"spark_master": "spark://host:7077", "spark_cores_max": "24"}, 24),
        ({"spark_master": "yarn", "spark_executor_instances": "5", "spark_executor_cores": "4"}, 20),
        ({"spark_master": "yarn", "spark_executor_cores": "4"}, 200),
        ({}, 200),
    ],
)
def test_cores_follow_from_the_cluster_rather_than_from_the_default_of_shuffles(settings, cores):
    assert cores_of(session(200, **settings)) == cores
