"""Operators of services: what they take of both parents, what they refuse, and what they submit."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.databricks.operators import databricks
from airflow.sdk import BaseOperator
from jinja2.sandbox import SandboxedEnvironment

import airflow_provider_statecheck
from airflow_provider_statecheck import RemoteDriverMixin
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import SubmittedDriverMixin
from airflow_provider_statecheck.payloads.additions import Additions
from tests.docs.pages import ROOT, blocks_of
from tests.optional_providers import is_importable
from tests.served_rows import job_in
from tests.stand_in_task import DAG_ID, RUN_ID, TASK_ID, context_of
from tests.unit.interpreter import modules_loaded_by

PACKAGE = "airflow_provider_statecheck"
RECIPE = ROOT / "docs" / "services" / "index.md"
ADDITIONS = Additions(
    mailbox="s3://lake/checkpoints/0f/mail/0f/3",
    package="s3://lake/checkpoints/packages/airflow_provider_statecheck-0.1.0-aa.zip",
    wheel="s3://lake/checkpoints/packages/aa/airflow_provider_statecheck-0.1.0-py3-none-any.whl",
)
STAGE = replace(ADDITIONS, application="s3://lake/checkpoints/packages/cc/statecheck_stage.py", arguments=("a:totals",))
SUBMISSION = "5" * 32
SCRIPT = "s3://lake/code/totals.py"
CLUSTER = {"spark_version": "17.3.x-scala2.13", "num_workers": 2}

Operator = type[Any]


def importable() -> Iterator[Operator]:
    """Yield the public operators of services whose provider is installed."""
    for service in ("amazon", "databricks", "google", "kubernetes", "livy"):
        module = f"{PACKAGE}.operators.{service}"
        if not is_importable(module):
            continue
        for name, found in sorted(vars(importlib.import_module(module)).items()):
            if name.startswith("Checkpointed") and name.endswith("Operator"):
                assert getattr(airflow_provider_statecheck, name) is found
                yield found


OPERATORS = {kind.__name__: kind for kind in importable()}
EACH = pytest.mark.parametrize("kind", OPERATORS.values(), ids=OPERATORS)
STEP = {"Name": "totals", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", SCRIPT]}}
SPARK = {"kind": "SparkApplication", "spec": {"type": "Python", "mainApplicationFile": SCRIPT}}
PYSPARK = {"main_python_file_uri": SCRIPT}
PLACE = {"region": "europe-west1", "project_id": "shop"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "CheckpointedDatabricksRunNowOperator": {"job_id": 7, "python_params": ["a"]},
    "CheckpointedDatabricksSubmitRunOperator": {
        "new_cluster": CLUSTER,
        "spark_python_task": {"python_file": SCRIPT, "parameters": ["a"]},
        "timeout_seconds": 60,
    },
    "CheckpointedDataprocCreateBatchOperator": {"batch": {"pyspark_batch": PYSPARK}, **PLACE},
    "CheckpointedDataprocSubmitJobOperator": {"job": {"pyspark_job": PYSPARK}, **PLACE},
    "CheckpointedEmrAddStepsOperator": {"job_flow_id": "j-1", "steps": [STEP], "wait_for_completion": True},
    "CheckpointedEmrContainerOperator": {
        "name": "totals",
        "virtual_cluster_id": "0a",
        "execution_role_arn": "arn",
        "release_label": "emr-8.0.0",
        "job_driver": {"sparkSubmitJobDriver": {"entryPoint": SCRIPT}},
        "tags": {"team": "sales"},
    },
    "CheckpointedEmrServerlessStartJobOperator": {
        "application_id": "0a",
        "execution_role_arn": "arn",
        "job_driver": {"sparkSubmit": {"entryPoint": SCRIPT}},
        "configuration_overrides": {},
        "name": "totals",
    },
    "CheckpointedGlueJobOperator": {"job_name": "totals", "script_args": {"--day": "1"}, "num_of_dpus": 4},
    "CheckpointedLivyOperator": {"file": SCRIPT, "args": ["a"], "conf": {"spark.a": "1"}, "polling_interval": 5},
    "CheckpointedSparkKubernetesOperator": {"name": "totals", "namespace": "etl", "template_spec": {"spark": SPARK}},
}
"""Arguments that the provider's operator takes as well."""
NO_SCRIPT: dict[str, dict[str, Any]] = {
    "CheckpointedDatabricksSubmitRunOperator": {"new_cluster": CLUSTER},
    "CheckpointedDataprocCreateBatchOperator": {"batch": {"pyspark_batch": {}}, **PLACE},
    "CheckpointedDataprocSubmitJobOperator": {"job": {"pyspark_job": {}}, **PLACE},
    "CheckpointedEmrAddStepsOperator": {
        "job_flow_id": "j-1",
        "steps": [{**STEP, "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit"]}}],
    },
    "CheckpointedEmrContainerOperator": {
        **ARGUMENTS["CheckpointedEmrContainerOperator"],
        "job_driver": {"sparkSubmitJobDriver": {}},
    },
    "CheckpointedEmrServerlessStartJobOperator": {
        **ARGUMENTS["CheckpointedEmrServerlessStartJobOperator"],
        "job_driver": {"sparkSubmit": {}},
    },
    "CheckpointedGlueJobOperator": {"job_name": "totals"},
    "CheckpointedLivyOperator": {},
}
"""Arguments of a job with the place for a stage."""


def provider_of(kind: Operator) -> Operator:
    """Return the operator that the provider has."""
    return next(each for each in kind.__mro__ if each.__module__.startswith("airflow.providers."))


def made(name: str, **arguments: Any) -> Any:
    """Return an operator of a name, unless its provider is missing."""
    if name not in OPERATORS:
        pytest.skip("Google's provider is missing")
    return OPERATORS[name](task_id="t", **ARGUMENTS[name] | arguments)


def own_arguments(kinds: Iterator[Operator] | list[Operator]) -> set[str]:
    """Return the names of the arguments that these classes take themselves."""
    signatures = [inspect.signature(vars(kind)["__init__"]) for kind in kinds if "__init__" in vars(kind)]
    named = [each for signature in signatures for each in signature.parameters.values()]
    return {each.name for each in named if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)} - {"self"}


def test_the_operators_are_those_of_the_table() -> None:
    assert {name for name in ARGUMENTS if "Dataproc" not in name} <= OPERATORS.keys() <= ARGUMENTS.keys()


@EACH
def test_templates_and_links_are_those_of_both_parents(kind: Operator) -> None:
    own = [*RemoteDriverMixin.checkpoint_template_fields, "stage"]
    if kind.__name__ == "CheckpointedDataprocSubmitJobOperator":
        own[own.index("job")] = "checkpoint_job"
    assert [*kind.template_fields] == [*provider_of(kind).template_fields, *own]
    assert len(set(kind.template_fields)) == len(kind.template_fields)
    links = [type(each) for each in kind.operator_extra_links]
    assert links == [*(type(each) for each in provider_of(kind).operator_extra_links), CheckpointsLink]
    # On Kubernetes the provider's have no dots, with which a name may end as well.
    assert [each.strip(".") for each in kind.template_ext] == [e.strip(".") for e in provider_of(kind).template_ext]


@EACH
def test_no_argument_of_the_provider_has_the_name_of_one_of_ours(kind: Operator) -> None:
    ours = own_arguments([CheckpointedOperator, SubmittedDriverMixin, RemoteDriverMixin])
    theirs = own_arguments([each for each in provider_of(kind).__mro__ if each not in BaseOperator.__mro__])
    # Its operator has another name for ours, as the next test shows.
    taken = {"job"} if kind.__name__ == "CheckpointedDataprocSubmitJobOperator" else set()
    assert ours & theirs == taken


@EACH
def test_a_task_has_what_the_operator_of_the_provider_has_of_the_same_arguments(kind: Operator) -> None:
    arguments = ARGUMENTS[kind.__name__]
    theirs = vars(provider_of(kind)(task_id="t", **arguments))
    ours = vars(kind(task_id="t", checkpoint_dir="s3://lake/checkpoints", uid="totals", **arguments))
    different = {name for name, value in theirs.items() if name not in ours or ours[name] != value}
    assert {name for name in different if not name.startswith("_BaseOperator")} <= {"client_request_token"}
    assert (ours["checkpoint_dir"], ours["uid"]) == ("s3://lake/checkpoints", "totals")


def test_a_job_of_dataproc_and_that_of_the_checkpoints_have_names_of_their_own() -> None:
    operator = made("CheckpointedDataprocSubmitJobOperator", checkpoint_job="sales")
    assert (operator.job, operator.checkpoint_job) == ({"pyspark_job": PYSPARK}, "sales")


@EACH
def test_a_job_that_is_waited_for_is_taken(kind: Operator) -> None:
    made(kind.__name__).require_waiting()
    if "deferrable" in own_arguments([*provider_of(kind).__mro__]):
        made(kind.__name__, deferrable=True).require_waiting()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("CheckpointedLivyOperator", {"polling_interval": 0}, "Expected polling_interval above 0, .* found 0; set"),
        *(
            (f"CheckpointedDatabricks{kind}Operator", {"wait_for_termination": False}, "Expected wait_for_termination=")
            for kind in ("SubmitRun", "RunNow")
        ),
        *(
            (f"Checkpointed{kind}Operator", {"wait_for_completion": False}, "Expected wait_for_completion=True or def")
            for kind in ("EmrAddSteps", "EmrContainer", "GlueJob")
        ),
        (
            "CheckpointedEmrServerlessStartJobOperator",
            {"wait_for_completion": False, "deferrable": True},
            "Expected wait_for_completion=True, because",
        ),
        *(
            (f"CheckpointedDataproc{kind}Operator", {"asynchronous": True}, "Expected asynchronous=False, .* found")
            for kind in ("SubmitJob", "CreateBatch")
        ),
        (
            "CheckpointedDataprocCreateBatchOperator",
            {"batch_id": "b"},
            "Expected no batch_id, .* found 'b', .* use",
        ),
    ],
)
def test_a_job_that_is_not_waited_for_is_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=message) as refused:
        made(name, **arguments).require_waiting()
    assert refused.value.key == next(iter(arguments))


@pytest.mark.parametrize("kind", ["SubmitJob", "CreateBatch"])
def test_a_job_that_starts_in_the_triggerer_is_refused(kind: str) -> None:
    operator = made(f"CheckpointedDataproc{kind}Operator", deferrable=True)
    operator.start_from_trigger = True
    with pytest.raises(InvalidConfigurationError, match="Expected start_from_trigger=False"):
        operator.require_waiting()


def token_of(operator: Any) -> str:
    """Return the name under which the service recognises a repeated submission."""
    if hasattr(operator, "client_request_token"):
        return str(operator.client_request_token)
    return str(operator.request_id if hasattr(operator, "request_id") else operator.json["idempotency_token"])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("CheckpointedDatabricksRunNowOperator", {"idempotency_token": "mine"}),
        ("CheckpointedDatabricksSubmitRunOperator", {"idempotency_token": "mine"}),
        ("CheckpointedDataprocCreateBatchOperator", {"request_id": "mine"}),
        ("CheckpointedDataprocSubmitJobOperator", {"request_id": "mine"}),
        ("CheckpointedEmrContainerOperator", {"client_request_token": "mine"}),
        ("CheckpointedEmrServerlessStartJobOperator", {"client_request_token": "mine"}),
    ],
)
def test_a_repeated_submission_is_recognised_by_a_token_unless_the_user_has_set_one(
    name: str, own: dict[str, str]
) -> None:
    additions = Additions(mailbox=ADDITIONS.mailbox) if "RunNow" in name else ADDITIONS
    for arguments, expected in (({}, SUBMISSION), (own, "mine")):
        operator = made(name, **arguments)
        operator.add_to_job(additions, SUBMISSION)
        assert token_of(operator) == expected


PARAMS = {"day": "2026-01-01", "unset": None}
FORWARDED = {"day": "2026-01-01", "statecheck-mailbox": ADDITIONS.mailbox}
NOTEBOOK = {"existing_cluster_id": "c", "notebook_task": {"notebook_path": "/totals"}}


FORWARDING = pytest.mark.skipif(
    not hasattr(databricks, "_get_forwardable_dag_params"), reason="this version of the provider forwards no params"
)


@FORWARDING
@pytest.mark.parametrize(
    "arguments", [{"json": NOTEBOOK}, {"tasks": [{"task_key": "t", **NOTEBOOK}]}], ids=["one task", "tasks"]
)
def test_params_of_a_dag_reach_a_notebook_beside_the_mailbox(arguments: dict[str, Any]) -> None:
    operator = OPERATORS["CheckpointedDatabricksSubmitRunOperator"](task_id="t", params=PARAMS, **arguments)
    operator.add_to_job(ADDITIONS, SUBMISSION)
    [task] = operator.json.get("tasks", [operator.json])
    assert task["notebook_task"]["base_parameters"] == FORWARDED
    assert "base_parameters" not in NOTEBOOK["notebook_task"]


@FORWARDING
@pytest.mark.parametrize(
    ("own", "name", "expected"),
    [
        ({}, "job_parameters", FORWARDED),
        ({"job_parameters": {"a": "b"}}, "job_parameters", {"a": "b", "statecheck-mailbox": ADDITIONS.mailbox}),
        ({"python_params": ["a"]}, "python_params", ["a", f"--statecheck-mailbox={ADDITIONS.mailbox}"]),
    ],
    ids=["none", "parameters of the job", "parameters of the script"],
)
def test_params_of_a_dag_reach_a_job_as_without_checkpoints(own: dict[str, Any], name: str, expected: Any) -> None:
    operator = OPERATORS["CheckpointedDatabricksRunNowOperator"](task_id="t", job_id=7, params=PARAMS, **own)
    operator.add_to_job(Additions(mailbox=ADDITIONS.mailbox), SUBMISSION)
    assert operator.json[name] == expected
    assert {key for key in operator.json if key.endswith(("_params", "_parameters"))} == {name}


def test_a_text_that_ends_as_a_file_does_is_none_on_kubernetes() -> None:
    operator = OPERATORS["CheckpointedSparkKubernetesOperator"](
        task_id="t", template_spec={"spark": SPARK}, job="daily_json", uid="to_yaml", stage="jobs:orders_yml"
    )
    operator.render_template_fields({}, SandboxedEnvironment())
    assert (operator.job, operator.uid, operator.stage) == ("daily_json", "to_yaml", "jobs:orders_yml")


def test_a_run_of_glue_that_still_runs_keeps_its_driver(monkeypatch) -> None:
    operator = made("CheckpointedGlueJobOperator", deferrable=True)
    if not hasattr(operator, "_find_previous_job_run"):
        pytest.skip("this version of the provider looks for no run")
    adopted: list[str] = []
    monkeypatch.setattr(operator, "adopt_running", lambda: adopted.append("adopted"))
    monkeypatch.setattr(operator, "_find_previous_job_run", lambda _, task_uuid: f"run of {task_uuid}")
    monkeypatch.setattr(operator, "_set_job_run_id", lambda *_: None)
    monkeypatch.setattr(operator, "hand_over", lambda: pytest.fail("a mailbox was opened"))
    ti = SimpleNamespace(try_number=2, dag_id="d", task_id="t", run_id="r", map_index=-1)
    assert operator.submit_job({"ti": ti}) == "run of d:t:r:-1"
    assert adopted == ["adopted"]


@pytest.mark.parametrize("name", NO_SCRIPT)
def test_a_stage_takes_the_place_of_a_script(name: str) -> None:
    if name not in OPERATORS:
        pytest.skip("Google's provider is missing")
    operator = OPERATORS[name](task_id="t", stage="a:totals", **NO_SCRIPT[name])
    operator.add_to_job(STAGE, SUBMISSION)
    submitted = json.dumps({name: value for name, value in vars(operator).items() if is_specification(value)})
    assert submitted.count("/statecheck_stage.py") >= 1
    assert submitted.count("a:totals") >= 1
    assert operator.stage == "a:totals"


def is_specification(value: Any) -> bool:
    """Return whether something is a part of a request."""
    return isinstance(value, dict | list) and bool(value) and "mail/0f/3" in json.dumps(value, default=str)


def test_a_run_of_a_job_takes_no_stage_and_ships_nothing_unless_it_is_asked_to() -> None:
    operator = made("CheckpointedDatabricksRunNowOperator")
    assert operator.ship_package is False
    with pytest.raises(InvalidConfigurationError, match="submit the stage with DatabricksSubmitRunOperator"):
        operator.add_to_job(STAGE, SUBMISSION)


def test_importing_the_operators_adds_our_modules_alone_to_those_of_the_providers() -> None:
    theirs = sorted({provider_of(kind).__module__ for kind in OPERATORS.values()})
    ours = sorted({kind.__module__ for kind in OPERATORS.values()})
    loaded = modules_loaded_by(f"import {', '.join(theirs)}; before.update(sys.modules); import {', '.join(ours)}")
    assert set(ours) <= loaded
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names <= {PACKAGE, "airflow"}
    assert [name for name in loaded if name.startswith("airflow.providers.")] == []


MOST_SECONDS, PROCESSES = 0.05, 5
_COST = """
import os, time
import {theirs}
for _ in range({processes}):
    reading, writing = os.pipe()
    if os.fork() == 0:
        before = time.process_time()
        from airflow_provider_statecheck import {ours}
        os.write(writing, str(time.process_time() - before).encode())
        os._exit(0)
    os.wait()
    print(os.read(reading, 64).decode())
"""
"""Prints what our operators cost in processes that have loaded those of the providers, in seconds of a processor."""


def test_importing_the_operators_costs_little_where_those_of_the_providers_are_loaded() -> None:
    theirs = ", ".join(sorted({provider_of(kind).__module__ for kind in OPERATORS.values()}))
    done = subprocess.run(
        [sys.executable, "-c", _COST.format(theirs=theirs, ours=", ".join(OPERATORS), processes=PROCESSES)],
        # The first process writes the bytecode of what another test has not imported yet.
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    costs = [float(line) for line in done.stdout.splitlines()[-PROCESSES:]]
    assert 0 < min(costs) <= MOST_SECONDS, costs


_BATCHES = f"""#!{sys.executable}
import json, sys, time
from pathlib import Path
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.spark.driver.mailbox import MailboxHandover

_, command, batch = sys.argv
found = MailboxHandover.read(json.loads(batch)["conf"]["spark.statecheck.mailbox"], {{}})
MailboxGateway(found.mailbox, 60, sleep=lambda _: time.sleep(0.02)).register(found.registration)
with Path(__file__).with_name("batches.log").open("a") as log:
    log.write(batch + "\\n")
first = Path(__file__).with_name("failed")
if not first.exists():
    first.touch()
    sys.exit(1)
"""
"""The command of the page: it runs no Spark, but begins as a driver does, and fails once."""


@pytest.fixture
def batch_operator(in_worker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """Return the operator that the page shows, in a worker, with the command that it runs."""
    command = tmp_path / "batches"
    command.write_text(_BATCHES)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [block] = [each for each in blocks_of(RECIPE) if "class CheckpointedBatchOperator" in each.code]
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.code, block.name, "exec", dont_inherit=True), namespace)
    operator: Operator = namespace["CheckpointedBatchOperator"]
    return operator


def test_an_operator_of_a_user_has_an_attempt_for_each_try(batch_operator: Operator, tmp_path: Path) -> None:
    given = {"file": SCRIPT, "py_files": ["s3://lake/code/helpers.zip"]}
    tries = [
        batch_operator(task_id=TASK_ID, batch=given, checkpoint_dir=str(tmp_path / "checkpoints")) for _ in range(2)
    ]
    with pytest.raises(subprocess.CalledProcessError):
        tries[0].execute(context_of(tmp_path, 1, 2))
    tries[1].execute(context_of(tmp_path, 2, 2))
    attempts = job_in(tmp_path, f"{DAG_ID}/{RUN_ID}").attempts
    assert [each.status for each in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    first, second = map(json.loads, (tmp_path / "batches.log").read_text().splitlines())
    assert first["conf"] != second["conf"]
    helpers, package = second["py_files"]
    assert helpers == "s3://lake/code/helpers.zip"
    assert Path(package.removeprefix("file://")).is_file()
    assert given == {"file": SCRIPT, "py_files": ["s3://lake/code/helpers.zip"]}
