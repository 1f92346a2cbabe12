from __future__ import annotations

import json

import pytest

from airflow_provider_statecheck.hooks.spark import SessionTarget


@pytest.mark.parametrize(
    ("connection", "config", "is_connect"),
    [
        (None, {}, False),
        (None, {"spark.remote": "sc://server"}, True),
        ({"conn_type": "spark", "host": "spark://master", "port": 7077}, {}, False),
        ({"conn_type": "spark", "host": "local[2]"}, {"spark.app.name": "sc://"}, False),
        ({"conn_type": "spark", "host": "sc://server"}, {}, True),
        ({"conn_type": "spark_connect", "host": "server", "port": 15002}, {}, True),
        ({"conn_type": "spark", "host": "local", "extra": {"spark.remote": "sc://server"}}, {}, True),
    ],
)
def test_it_knows_where_sparks_own_operator_will_go(monkeypatch, connection, config, is_connect) -> None:
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps(connection))
    target = SessionTarget.of("my_spark" if connection else None, config)
    assert target.is_connect is is_connect


def test_settings_of_the_task_come_before_those_of_the_connection(monkeypatch) -> None:
    extra = {"spark.driver.memory": "1g", "spark.ui.port": 4041}
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps({"conn_type": "spark", "extra": extra}))
    target = SessionTarget.of("my_spark", {"spark.driver.memory": "2g"})
    assert target.conf == {"spark.driver.memory": "2g", "spark.ui.port": "4041"}


@pytest.mark.parametrize(
    ("connection", "config", "master"),
    [
        ({"host": "spark://cluster", "port": 7077}, {}, "spark://cluster:7077"),
        ({"host": "yarn"}, {}, "yarn"),
        ({"host": "local[2]"}, {"spark.master": "local[4]"}, "local[4]"),
    ],
)
def test_master_of_the_connection_is_known_before_a_jvm_starts(monkeypatch, connection, config, master) -> None:
    """A JVM that was started without one is local, and Spark's own operator then keeps it so."""
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps({"conn_type": "spark", **connection}))
    target = SessionTarget.of("my_spark", config)
    assert target.conf["spark.master"] == master
    assert target.complete({"a": 1}) == {"a": 1, "spark.master": master}


def test_settings_are_not_shown() -> None:
    assert "s3cr3t" not in repr(SessionTarget({"spark.hadoop.fs.s3a.secret.key": "s3cr3t"}, is_connect=False))


def test_connect_server_needs_no_java_here(monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    SessionTarget({}, is_connect=True).check_environment()
