"""The command and the environment of a submission, without Spark."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import fsspec.implementations.memory
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_statecheck.checkpoint import masking
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import Transport
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.spark import (
    CheckpointedSparkSubmitHook,
    CheckpointedStageSubmitHook,
    Shipping,
    as_cluster_python,
    require_cluster_paths,
)
from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE, Handover, take_handover
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_registration

TOKEN = "a token that nobody may see"
STANDALONE = {"conn_type": "spark", "host": "spark://master", "port": 7077}
IN_CLUSTER = {**STANDALONE, "extra": {"deploy-mode": "cluster"}}


class Stage:
    """Registers nothing."""

    registered = 0
    mailbox = "file:///checkpoints/" + "a" * 32 + "/mail/" + "b" * 32 + "/1"

    def open_mailbox(self) -> str:
        self.registered += 1
        return self.mailbox

    def register(self) -> Handover:
        self.registered += 1
        return Handover(url="http://api", token=TOKEN, registration=REGISTRATION, driver=DriverSettings())


class Started(Exception):
    """Raised instead of starting spark-submit."""


REGISTRATION: RegisterAttempt = make_registration()


@pytest.fixture
def submit(monkeypatch, tmp_path: Path) -> Any:
    """Submit an application and return the command, the environment and the hook."""
    started: dict[str, Any] = {}

    def popen(command: list[str], **kwargs: Any) -> None:
        started.update(command=command, environment=kwargs.get("env") or {})
        raise Started

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess.Popen", popen)

    def run(connection: dict[str, Any], application: str = "/jobs/a.py", **kwargs: Any) -> Any:
        hook, _ = make_hook(monkeypatch, tmp_path, connection, **kwargs)
        with pytest.raises(Started):
            hook.submit(application)
        return started["command"], started["environment"]

    return run


def make_hook(
    monkeypatch,
    tmp_path: Path,
    connection: dict[str, Any],
    *,
    ships: bool = True,
    shared: str | None = None,
    storage: CheckpointStorage | None = None,
    kind: type[CheckpointedSparkSubmitHook] = CheckpointedSparkSubmitHook,
    transport: Transport | None = None,
    **kwargs: Any,
) -> tuple[CheckpointedSparkSubmitHook, Stage]:
    """Return a hook and the stage that it submits."""
    # Airflow's hook requires the client of Kubernetes for its masters, before it would use it.
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    shipping = Shipping(
        scratch=tmp_path / "scratch",
        storage=storage or CheckpointStorage.open(f"file://{tmp_path}/checkpoints"),
        shared=shared or f"file://{tmp_path}/shared",
        is_package_shipped=ships,
        transport=transport,
    )
    stage = Stage()
    return kind.taking_over(SparkSubmitHook(**kwargs), stage, shipping), stage  # type: ignore[arg-type]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize("connection", [{"conn_type": "spark", "host": "local[2]"}, STANDALONE, IN_CLUSTER])
def test_token_is_in_the_childs_environment_and_nowhere_on_the_command_line(submit, connection) -> None:
    command, environment = submit(connection)
    assert take_handover(dict(environment)).token == TOKEN
    assert TOKEN not in " ".join(command)
    assert TOKEN not in repr(Stage().register())


@pytest.mark.parametrize("name", ["spark.hadoop.fs.s3a.access.key", "spark.openlineage.transport.auth.apiKey"])
def test_secret_settings_are_masked_in_the_command_that_airflow_logs(submit, monkeypatch, name: str) -> None:
    masker = importlib.import_module("airflow.sdk._shared.secrets_masker")
    monkeypatch.setattr(masker._secrets_masker(), "patterns", set())
    monkeypatch.setattr(masker._secrets_masker(), "replacer", None)
    monkeypatch.setattr(masking, "known_secrets", masking.KnownSecrets())

    command, environment = submit(STANDALONE, conf={name: "c0rrect/h0rse+b@ttery"})

    assert f"{name}=c0rrect/h0rse+b@ttery" in command  # as Spark's own operator passes it
    assert f"{name}=***" in masker.redact(" ".join(command))
    assert not [value for value in environment.values() if "h0rse" in value]


def test_the_tasks_own_environment_stays_as_it_was(submit, monkeypatch) -> None:
    import os

    before = dict(os.environ)
    submit(STANDALONE)
    assert {k: v for k, v in os.environ.items() if k != "AIRFLOW_CONN_SPARK_DEFAULT"} == {
        k: v for k, v in before.items() if k != "AIRFLOW_CONN_SPARK_DEFAULT"
    }


def test_variables_of_the_user_are_kept_in_client_mode(submit) -> None:
    _, environment = submit(STANDALONE, env_vars={"MINE": "1"})
    assert (environment["MINE"], HANDOVER_VARIABLE in environment) == ("1", True)


def test_package_is_added_to_the_users_python_files_in_client_mode(submit, tmp_path) -> None:
    command, _ = submit(STANDALONE, py_files="/jobs/mine.zip")
    mine, shipped = option(command, "--py-files").split(",")
    assert mine == "/jobs/mine.zip"
    assert Path(shipped).parent == tmp_path / "scratch"


def test_nothing_is_shipped_where_the_package_is_installed(submit) -> None:
    command, _ = submit(STANDALONE, ships=False)
    assert "--py-files" not in command
    assert command[-1] == "/jobs/a.py"


def test_python_application_in_cluster_mode_is_run_by_sparks_own_runner(submit, tmp_path) -> None:
    command, _ = submit(IN_CLUSTER, application_args=["--day", "1"])
    jar, python_option, python_files, program, launcher, launcher_digest, package, package_digest, *given = command[
        -11:
    ]
    assert option(command, "--class") == "org.apache.spark.deploy.PythonRunner"
    assert jar == f"file://{launcher}"
    assert (python_option, python_files, given) == ("-c", "", ["/jobs/a.py", "--day", "1"])
    compile(program, "program", "exec")
    for path, digest in ((launcher, launcher_digest), (package, package_digest)):
        assert Path(path).parent == tmp_path / "shared"
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
    assert "spark.driver.supervise=false" in command


def test_jar_in_cluster_mode_stays_as_it_is(submit) -> None:
    command, _ = submit(IN_CLUSTER, "/jobs/a.jar", java_class="Main")
    assert (command[-1], option(command, "--class")) == ("/jobs/a.jar", "Main")


def test_cluster_mode_without_a_shared_folder_is_refused_before_anything_is_registered(monkeypatch, tmp_path) -> None:
    hook, stage = make_hook(monkeypatch, tmp_path, IN_CLUSTER, shared="s3://bucket/packages")
    with pytest.raises(InvalidConfigurationError, match="set package_dir"):
        hook.submit("/jobs/a.py")
    assert stage.registered == 0


def test_application_of_a_stage_is_where_a_driver_in_client_mode_finds_it_with_nothing_beside_it(submit, tmp_path):
    arguments = ["pipelines.balances:stage"]
    command, _ = submit(STANDALONE, "statecheck_stage.py", kind=CheckpointedStageSubmitHook, application_args=arguments)
    [script] = (tmp_path / "scratch").rglob("*.py")
    assert [path.name for path in script.parent.iterdir()] == ["statecheck_stage.py"]
    assert command[-2:] == [str(script), *arguments]
    compile(script.read_text(), str(script), "exec")


YARN = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
KUBERNETES = {"conn_type": "spark", "host": "k8s://https://host", "port": 443, "extra": {"deploy-mode": "cluster"}}
UPLOADS = {"spark.kubernetes.file.upload.path": "s3a://bucket/uploads"}


@pytest.mark.parametrize(
    ("connection", "transport", "conf"),
    [
        (YARN, None, {}),
        (KUBERNETES, None, UPLOADS),
        (IN_CLUSTER, Transport.MAILBOX, {}),
        (STANDALONE, Transport.MAILBOX, {}),
        ({"conn_type": "spark", "host": "local[2]"}, Transport.MAILBOX, {}),
    ],
    ids=["YARN cluster", "Kubernetes cluster", "standalone cluster", "standalone client", "local"],
)
def test_driver_with_a_mailbox_gets_its_uri_and_no_token(submit, connection, transport, conf) -> None:
    command, environment = submit(connection, transport=transport, conf=conf)
    assert f"spark.statecheck.mailbox={Stage.mailbox}" in command
    assert HANDOVER_VARIABLE not in environment
    assert TOKEN not in repr((command, environment))


@pytest.mark.parametrize("connection", [STANDALONE, IN_CLUSTER, {"conn_type": "spark", "host": "local[2]"}])
def test_token_is_the_default_where_it_is_safe(submit, connection) -> None:
    command, environment = submit(connection)
    assert HANDOVER_VARIABLE in environment
    assert "spark.statecheck.mailbox" not in repr(command)


@pytest.mark.parametrize(("connection", "conf"), [(YARN, {}), (KUBERNETES, UPLOADS)], ids=["YARN", "Kubernetes"])
def test_application_on_yarn_and_kubernetes_is_submitted_as_it_is_with_the_package_beside_it(
    submit, connection, conf, tmp_path
) -> None:
    command, _ = submit(connection, conf=conf, py_files="/jobs/mine.zip")
    assert command[-1] == "/jobs/a.py"
    mine, shipped = option(command, "--py-files").split(",")
    assert (mine, Path(shipped).parent) == ("/jobs/mine.zip", tmp_path / "scratch")


def test_stage_on_yarn_is_the_application_of_this_package(submit, tmp_path) -> None:
    arguments = ["pipelines.balances:stage"]
    command, _ = submit(YARN, "statecheck_stage.py", kind=CheckpointedStageSubmitHook, application_args=arguments)
    [script] = (tmp_path / "scratch").rglob("*.py")
    assert command[-2:] == [str(script), *arguments]


class OnAStore(fsspec.implementations.memory.MemoryFileSystem):  # type: ignore[misc]
    """A store of objects under the name of any shared store."""

    protocol: ClassVar[tuple[str, ...]] = ("s3", "gcs", "abfss", "hdfs")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(f"memory://{path.rpartition('://')[2]}"))


@pytest.mark.parametrize("connection", [YARN, KUBERNETES], ids=["YARN", "Kubernetes"])
@pytest.mark.parametrize(
    ("directory", "shown"),
    [
        ("s3://lake/packages", "s3a://lake/packages"),
        ("gcs://lake/packages", "gs://lake/packages"),
        ("abfss://lake@account.dfs.core.windows.net/packages", "abfss://lake@account.dfs.core.windows.net/packages"),
        ("hdfs://name:8020/packages", "hdfs://name:8020/packages"),
    ],
)
def test_what_spark_can_load_from_the_storage_is_uploaded_there_once(submit, connection, directory, shown) -> None:
    storage = CheckpointStorage(OnAStore(), directory)
    shipping: dict[str, Any] = {"shared": directory, "storage": storage, "kind": CheckpointedStageSubmitHook}
    command, _ = submit(connection, "statecheck_stage.py", py_files="/jobs/mine.zip", **shipping)
    mine, package = option(command, "--py-files").split(",")
    uploaded = {f"{shown}/{name}" for name in storage.list_files(directory)}
    assert (mine, {package, command[-1]}) == ("/jobs/mine.zip", uploaded)
    assert submit(connection, "statecheck_stage.py", py_files="/jobs/mine.zip", **shipping)[0] == command


def test_driver_of_a_task_gets_its_package_from_the_task(submit, tmp_path) -> None:
    command, _ = submit(STANDALONE, transport=Transport.MAILBOX, shared="s3://lake/packages")
    assert Path(option(command, "--py-files")).parent == tmp_path / "scratch"


def test_driver_with_a_mailbox_may_be_started_again_by_spark(submit) -> None:
    command, _ = submit(IN_CLUSTER, transport=Transport.MAILBOX, conf={"spark.driver.supervise": "true"})
    assert command[:2] == ["spark-submit", "--supervise"]
    assert "spark.driver.supervise=false" not in command


@pytest.mark.parametrize(
    ("connection", "value"),
    [(IN_CLUSTER, "false"), (STANDALONE, "true"), (YARN, "true")],
    ids=["off", "client", "YARN"],
)
def test_option_to_start_a_driver_again_is_passed_where_spark_reads_it(submit, connection, value) -> None:
    command, _ = submit(connection, transport=Transport.MAILBOX, conf={"spark.driver.supervise": value})
    assert "--supervise" not in command


@pytest.mark.parametrize(
    ("connection", "conf", "transport", "text"),
    [
        (YARN, {}, Transport.HTTP, "Expected transport='mailbox' .* found 'http' on 'yarn'"),
        (STANDALONE, {"spark.submit.deployMode": "cluster"}, None, "use deploy_mode='cluster'"),
        (IN_CLUSTER, {"spark.driver.supervise": "True"}, None, "let Airflow retry"),
    ],
    ids=["YARN cluster", "hidden cluster", "supervised"],
)
def test_modes_without_a_safe_way_are_refused(monkeypatch, tmp_path, connection, conf, transport, text) -> None:
    with pytest.raises(InvalidConfigurationError, match=text):
        make_hook(monkeypatch, tmp_path, connection, conf=conf, transport=transport)


@pytest.mark.parametrize("kind", [CheckpointedSparkSubmitHook, CheckpointedStageSubmitHook])
@pytest.mark.parametrize("shared", [None, "abfs://lake/packages", "memory://lake/packages"])
def test_package_that_cannot_reach_a_pod_is_told_before_anything_is_registered(
    monkeypatch, tmp_path, kind, shared
) -> None:
    hook, stage = make_hook(monkeypatch, tmp_path, KUBERNETES, kind=kind, shared=shared)
    with pytest.raises(InvalidConfigurationError, match=r"spark\.kubernetes\.file\.upload\.path in conf"):
        hook.submit("/jobs/a.py")
    assert stage.registered == 0


def test_workers_of_local_mode_get_the_tasks_python(submit, monkeypatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    _, environment = submit({"conn_type": "spark", "host": "local[2]"})
    assert environment["PYSPARK_PYTHON"] == sys.executable
    _, environment = submit(STANDALONE)
    assert "PYSPARK_PYTHON" not in environment


def test_runner_takes_the_program_after_the_python_files_then_the_arguments() -> None:
    python = as_cluster_python(["pass", "--day", "3"], py_files="/jobs/b.zip,/jobs/c.py", files=None, conf={})
    assert python.application_args == ["-c", "/jobs/b.zip,/jobs/c.py", "pass", "--day", "3"]


def test_python_files_are_given_to_the_executors_beside_the_users_own_files_and_settings() -> None:
    python = as_cluster_python(["pass"], py_files="/jobs/b.zip", files="/jobs/x.csv", conf={"spark.a": "1"})
    assert python.files == "/jobs/x.csv,/jobs/b.zip"
    assert python.conf == {"spark.a": "1", "spark.submit.pyFiles": "/jobs/b.zip"}


def test_without_python_files_nothing_is_added() -> None:
    python = as_cluster_python(["pass"], py_files=None, files=None, conf={})
    assert (python.application_args, python.files, python.conf) == (["-c", "", "pass"], None, {})


@pytest.mark.parametrize("script", ["s3://bucket/a.py", "a.py", "hdfs:///jobs/a.py", "https://host/a.py"])
def test_script_that_a_worker_does_not_fetch_is_refused(script: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="absolute paths that every worker can read"):
        require_cluster_paths(script, None)


def test_python_file_that_a_worker_does_not_fetch_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"s3://bucket/b\.zip"):
        require_cluster_paths("/jobs/a.py", "/jobs/c.zip,s3://bucket/b.zip")
