"""Where a task starts Spark, and the settings and masters that are refused before it does."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.hooks.spark import CheckpointedSparkSubmitHook, SessionTarget, Shipping
from airflow_provider_statecheck.hooks.spark_settings import checked_settings, checked_texts
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


@pytest.mark.parametrize(
    ("connection", "config", "is_connect"),
    [
        (None, {}, False),
        (None, {"spark.remote": "sc://server"}, True),
        ({"conn_type": "spark", "host": "spark://master", "port": 7077}, {}, False),
        ({"conn_type": "spark", "extra": {"queue": None}}, {"spark.master": "k8s://https://host:443"}, False),
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
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps({"conn_type": "spark", "host": "local", "extra": extra}))
    target = SessionTarget.of("my_spark", {"spark.driver.memory": "2g"})
    assert target.conf == {"spark.driver.memory": "2g", "spark.ui.port": "4041", "spark.master": "local"}


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
    assert SessionTarget.of("my_spark", config).conf["spark.master"] == master


def test_settings_are_not_shown() -> None:
    assert "s3cr3t" not in repr(SessionTarget({"spark.hadoop.fs.s3a.secret.key": "s3cr3t"}, is_connect=False))


def test_connect_server_needs_no_java_here(monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    SessionTarget({}, is_connect=True).check_environment()
    with pytest.raises(EnvironmentNotReadyError, match="Expected Java 17 or newer in JAVA_HOME"):
        SessionTarget({}, is_connect=False).check_environment()


SPARK = {"conn_type": "spark", "host": "spark://master", "port": 7077}
CONNECT = {"conn_type": "spark_connect", "host": "server", "port": 15002, "login": "me", "password": "a token"}


class FakeConf:
    """Settings without those of a JVM."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> None:
        self.settings[key] = value

    def get(self, key: str) -> Any:
        return self.settings.get(key)


def settings_of_sparks_own_operator(monkeypatch: pytest.MonkeyPatch, conn_id: str, config: dict[str, Any]) -> Any:
    """Return the settings with which Spark's operator creates its session."""
    import pyspark
    import pyspark.sql

    made: list[dict[str, Any]] = []

    def session(conf: FakeConf) -> Any:
        made.append(conf.settings)
        return SimpleNamespace(getOrCreate=lambda: SimpleNamespace(stop=lambda: None))

    monkeypatch.setattr(pyspark, "SparkConf", FakeConf)
    monkeypatch.setattr(pyspark.sql, "SparkSession", SimpleNamespace(builder=SimpleNamespace(config=session)))
    monkeypatch.setattr(PySparkOperator.__mro__[1], "execute_callable", lambda _: None)
    PySparkOperator(
        task_id="t", python_callable=lambda spark: None, conn_id=conn_id, config_kwargs=config
    ).execute_callable()
    return {name: str(value) for name, value in made[0].items() if name != "spark.app.name"}


@pytest.mark.parametrize(
    ("connection", "config"),
    [
        (SPARK, {}),
        (
            {"conn_type": "spark", "host": "local[2]", "extra": {"spark.ui.port": 4041, "hive.x": "y"}},
            {"spark.ui.port": 1},
        ),
        ({"conn_type": "spark", "host": "yarn"}, {"spark.master": "local[4]"}),
        ({"conn_type": "spark", "host": "sc://server", "port": 15002}, {"spark.a": True}),
        ({"conn_type": "spark", "host": "local", "extra": {"spark.remote": "sc://server"}}, {}),
        (CONNECT, {"spark.a": 0.5}),
        (CONNECT | {"extra": {"use_ssl": True}}, {}),
        ({"conn_type": "other", "host": "k8s://https://host", "port": 443}, {}),
    ],
)
def test_settings_are_those_of_sparks_own_operator(monkeypatch, connection, config) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps(connection))
    ours = SessionTarget.of("my_spark", config).conf
    assert ours == settings_of_sparks_own_operator(monkeypatch, "my_spark", config)


NO_VALUE = "Expected a value for config_kwargs['spark.driver.memory'], found"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"spark.driver.memory": None}, f"{NO_VALUE} None"),
        ({"spark.driver.memory": "None"}, f"{NO_VALUE} 'None'"),
        ({"spark.driver.memory": ["1g"]}, "for config_kwargs['spark.driver.memory'], found list"),
        ({"spark.a": {"b": "s3cr3t"}}, "for config_kwargs['spark.a'], found dict"),
        ({None: "1g"}, "in config_kwargs, found None"),
        ({"": "1g"}, "in config_kwargs, found ''"),
        ({"spark.driver.memory 1g": ""}, "in config_kwargs, found 'spark.driver.memory 1g'"),
        ("{'spark.a': 1}", "Expected a mapping as config_kwargs, found str"),
        ([("spark.a", 1)], "Expected a mapping as config_kwargs, found list"),
        ({"spark.master": "master:7077"}, "in config_kwargs, found 'master:7077'"),
        ({"spark.master": "spark://master"}, "in config_kwargs, found 'spark://master'"),
        ({"spark.master": "local[x]"}, "in config_kwargs, found 'local[x]'"),
        ({"spark.master": "mesos://master:5050"}, "in config_kwargs, found 'mesos://master:5050'"),
        ({"spark.master": ""}, "in config_kwargs, found ''"),
        ({"spark.remote": "server:15002"}, "such as sc://host:15002 in config_kwargs"),
        ({"spark.remote": "sc://"}, "such as sc://host:15002 in config_kwargs"),
        ({"spark.remote": "sc://server", "spark.master": "local"}, "Expected spark.master or spark.remote, found both"),
        ({"spark.submit.deployMode": "cluster"}, "found spark.submit.deployMode='cluster'"),
    ],
)
def test_a_setting_that_spark_would_refuse_is_told_by_its_argument(config, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)) as raised:
        SessionTarget.of(None, config)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ("spark://127.0.0.1:7077", "found '127.0.0.1:7077'; correct it. Airflow takes the scheme"),
        ("k8s://https%3A%2F%2Fhost:443", "found 'https://host:443'"),
        ("yarn://", "Expected the host of the connection 'my_spark', found none"),
        (json.dumps({"conn_type": "spark"}), "Expected the host of the connection 'my_spark', found none"),
        (json.dumps({"conn_type": "spark", "host": " "}), "Expected the host of the connection 'my_spark', found none"),
        (json.dumps({"conn_type": "spark_connect"}), "Expected the host of the connection 'my_spark', found none"),
        (json.dumps({"conn_type": "spark_connect", "host": "sc://server/path"}), "found one with a path"),
        (json.dumps({"conn_type": "spark", "host": "master"}), "in the connection 'my_spark', found 'master'"),
        (json.dumps({"conn_type": "spark", "host": "local[2]", "port": 7077}), "found 'local[2]:7077'"),
        (json.dumps(SPARK | {"host": "spark://master:7077"}), "found 'spark://master:7077:7077'"),
        (
            json.dumps(SPARK | {"extra": {"spark.driver.memory": None}}),
            "Expected a value for the extra of the connection 'my_spark'['spark.driver.memory'], found None",
        ),
        (json.dumps(SPARK | {"extra": {"queue": None, "deploy-mode": ""}}), None),
        (json.dumps(SPARK | {"host": "spark://one:7077,two"}), None),
    ],
)
def test_a_connection_without_a_master_that_spark_knows_is_told_by_its_name(monkeypatch, connection, message) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", connection)
    if message is None:
        assert SessionTarget.of("my_spark", {}).conf["spark.master"]
        return
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        SessionTarget.of("my_spark", {})


def test_a_name_of_a_connection_that_a_template_left_out_is_told() -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected a value for conn_id, found 'None'"):
        SessionTarget.of("None", {})


@pytest.mark.parametrize(
    ("connection", "deploy_mode", "message"),
    [
        ({"conn_type": "spark"}, None, "found 'spark://'; correct its host and port"),
        ({"conn_type": "spark", "host": "master"}, None, "found 'master'; correct its host and port"),
        (SPARK, "clustre", "Expected 'client' or 'cluster' as deploy_mode"),
        (SPARK | {"extra": {"deploy-mode": "driver"}}, None, "found 'driver'"),
    ],
)
def test_a_submission_that_spark_would_refuse_is_told_before_it_begins(
    monkeypatch, tmp_path, connection, deploy_mode, message
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    storage = CheckpointStorage.open(tmp_path.as_uri())
    shipping = Shipping(scratch=tmp_path, storage=storage, shared=tmp_path.as_uri())
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        CheckpointedSparkSubmitHook.taking_over(SparkSubmitHook(deploy_mode=deploy_mode), None, shipping)  # type: ignore[arg-type]


def test_values_of_a_command_line_are_texts_and_a_missing_one_is_told() -> None:
    assert checked_texts("application_args", ["--day", 3, None][:2]) == ["--day", "3"]
    assert (checked_texts("application_args", None), checked_settings("conf", None)) == (None, {})
    with pytest.raises(InvalidConfigurationError, match=r"application_args\[2\], found None"):
        checked_texts("application_args", ["--day", 3, None])
    with pytest.raises(InvalidConfigurationError, match="Expected a list as application_args, found str"):
        checked_texts("application_args", "['--day']")
