"""
Runs of Databricks: submitted ones, and those of a job that Databricks has.

A driver on a cluster of its own finds the mailbox in a property of Spark. On an existing cluster, on serverless compute
and in a job it is a parameter: an argument of a script, or a named parameter, which a notebook gives to
:meth:`StageContext.current <airflow_provider_statecheck.spark.context.StageContext.current>` with
``mailbox=dbutils.widgets.get("statecheck-mailbox")``. Databricks installs this package as a wheel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    is_fit,
    is_this_package,
    listed,
    mapping,
    only,
    with_argument,
    with_file,
    with_parameter,
    with_property,
    with_values,
)
from airflow_provider_statecheck.payloads.submit_options import application_in, command_with

_SCRIPT = "spark_python_task"
_NOTEBOOK = "notebook_task"
_WHEEL = "python_wheel_task"
_SUBMIT = "spark_submit_task"
_OF_PYTHON = (_SCRIPT, _NOTEBOOK, _WHEEL, _SUBMIT)
_ARGUMENTS = ("python_params", "spark_submit_params")
_PARAMETERS = ("notebook_params", "python_named_params")
_OF_OTHERS = ("jar_params", "dbt_commands", "sql_params", "pipeline_params")


def submitted_run_with(run: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return the request of a one-time run with additions to the only task that runs a Python application.

    :param run: Merged ``json`` of the provider's ``DatabricksSubmitRunOperator``: with ``tasks``, or with one task.
    :raises InvalidConfigurationError: if not exactly one task runs a Python application, or this package cannot be
        installed for it.
    """
    if run.get("tasks") is None:
        _chosen([run], additions)
        task, changes = _changes(run, run, additions)
        return {**run, **task, **changes}
    tasks = [mapping(each, "tasks") for each in listed(run["tasks"], "tasks")]
    chosen = _chosen(tasks, additions)
    task, changes = _changes(run, tasks[chosen], additions)
    return {
        **run,
        **changes,
        "tasks": [{**each, **task} if place == chosen else each for place, each in enumerate(tasks)],
    }


def job_run_with(run: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return the request of a run of a job with the mailbox as a parameter.

    A job parameter reaches notebooks and keyword arguments of wheels by itself, and scripts that take
    ``--statecheck-mailbox={{job.parameters.`statecheck-mailbox`}}`` among their parameters. The job's own definition
    names the application and installs this package.

    :param run: Merged ``json`` of the provider's ``DatabricksRunNowOperator``.
    :raises InvalidConfigurationError: if the parameters are those of another kind of task, or of several kinds.
    """
    _require_script_of_job(additions)
    given = [name for name in (*_ARGUMENTS, *_PARAMETERS) if run.get(name) is not None]
    others = [name for name in _OF_OTHERS if run.get(name) is not None]
    if len(given) > 1 or (others and not given):
        raise InvalidConfigurationError(
            f"Expected parameters of one kind of Python task, or job_parameters, found {' and '.join(given + others)}; "
            "give the driver's task a job of its own, or use job_parameters, which all tasks can read."
        )
    name = given[0] if given else "job_parameters"
    return {**run, name: _job_parameters(name, run.get(name), additions)}


def _job_parameters(name: str, parameters: Any, additions: Additions) -> Any:
    if name == "spark_submit_params":
        return command_with(listed(parameters, name), additions, name)
    return (with_argument if name in _ARGUMENTS else with_parameter)(parameters, additions, name)


def _require_script_of_job(additions: Additions) -> None:
    if additions.application is not None:
        raise InvalidConfigurationError(
            "Expected a script, a notebook or a wheel in the job's definition, found a stage, whose application a run "
            "of the job cannot name; submit the stage with DatabricksSubmitRunOperator."
        )
    if additions.package is not None or additions.wheel is not None:
        raise InvalidConfigurationError(
            "Expected this package among the libraries of the job's tasks, because a run of a job cannot add one, "
            "found a package to ship; install it there, and set ship_package=False."
        )


def _chosen(tasks: Sequence[Mapping[str, Any]], additions: Additions) -> int:
    fit = [place for place, task in enumerate(tasks) if _is_fit(task, additions)]
    of_python = [place for place, task in enumerate(tasks) if _kind(task) in _OF_PYTHON]
    # What does not fit is refused with its reason.
    return only(fit or of_python, [str(_kind(task) or "no application") for task in tasks], "task")


def _changes(
    run: Mapping[str, Any], task: Mapping[str, Any], additions: Additions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what changes in the task, and what changes in the run."""
    kind = _kind(task) or _SCRIPT
    body = _with_application(kind, mapping(task.get(kind), kind), additions)
    if kind == _SUBMIT:
        # Databricks reads neither spark_conf nor libraries for it.
        return {kind: body}, {}
    in_task, in_run = _with_wheel(run, task, additions)
    cluster = task.get("new_cluster")
    if cluster is not None:
        return {kind: body, "new_cluster": _cluster_with(cluster, additions, "new_cluster"), **in_task}, in_run
    if task.get("job_cluster_key") is not None:
        clusters = _job_clusters_with(run, task["job_cluster_key"], additions)
        return {kind: body, **in_task}, {"job_clusters": clusters, **in_run}
    return {kind: _with_parameter(kind, body, additions), **in_task}, in_run


def _with_application(kind: str, body: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    if kind == _SUBMIT:
        words = listed(body.get("parameters"), f"{kind}.parameters")
        return {**body, "parameters": command_with(words, additions, f"{kind}.parameters")}
    if kind != _SCRIPT:
        application_of(kind, None, additions, "the task")
        return dict(body)
    place = f"{kind}.python_file"
    file, arguments = application_of(body.get("python_file"), body.get("parameters"), additions, place)
    return with_values(body, {"python_file": file, "parameters": arguments})


def _with_parameter(kind: str, body: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    if kind == _NOTEBOOK:
        name = "base_parameters"
    elif kind == _WHEEL and body.get("named_parameters") is not None:
        name = "named_parameters"
    else:
        return {**body, "parameters": with_argument(body.get("parameters"), additions, f"{kind}.parameters")}
    return {**body, name: with_parameter(body.get(name), additions, f"{kind}.{name}")}


def _cluster_with(cluster: Any, additions: Additions, place: str) -> dict[str, Any]:
    given = mapping(cluster, place)
    return {**given, "spark_conf": with_property(given.get("spark_conf"), additions, f"{place}.spark_conf")}


def _job_clusters_with(run: Mapping[str, Any], key: Any, additions: Additions) -> list[Any]:
    clusters, chosen = _keyed(run, "job_clusters", "job_cluster_key", key)
    changed = _cluster_with(clusters[chosen].get("new_cluster"), additions, "job_clusters.new_cluster")
    return [{**each, "new_cluster": changed} if place == chosen else each for place, each in enumerate(clusters)]


def _with_wheel(
    run: Mapping[str, Any], task: Mapping[str, Any], additions: Additions
) -> tuple[dict[str, Any], dict[str, Any]]:
    wheel = additions.wheel
    if wheel is None:
        return {}, {}
    if any(task.get(name) is not None for name in ("new_cluster", "existing_cluster_id", "job_cluster_key")):
        kept = [each for each in listed(task.get("libraries"), "libraries") if not _is_this_package(each)]
        return {"libraries": [*kept, {"whl": wheel}]}, {}
    key = task.get("environment_key")
    if key is None:
        raise InvalidConfigurationError(
            "Expected environment_key in a task on serverless compute, whose environment installs this package, found "
            "none; add an environment, or install the package in the notebook's own and set ship_package=False."
        )
    return {}, {"environments": _environments_with(run, key, wheel)}


def _environments_with(run: Mapping[str, Any], key: Any, wheel: str) -> list[Any]:
    environments, chosen = _keyed(run, "environments", "environment_key", key)
    spec = mapping(environments[chosen].get("spec"), "environments.spec")
    dependencies = with_file(spec.get("dependencies"), wheel, "environments.spec.dependencies")
    changed = {**spec, "dependencies": dependencies}
    return [{**each, "spec": changed} if place == chosen else each for place, each in enumerate(environments)]


def _keyed(run: Mapping[str, Any], name: str, key_name: str, key: Any) -> tuple[Sequence[Mapping[str, Any]], int]:
    found = [mapping(each, name) for each in listed(run.get(name), name)]
    for place, each in enumerate(found):
        if each.get(key_name) == key:
            return found, place
    raise InvalidConfigurationError(
        f"Expected {key_name} {key!r} of a task in {name} of the run, found {[each.get(key_name) for each in found]}; "
        f"add it to {name}."
    )


def _is_this_package(library: Any) -> bool:
    return isinstance(library, Mapping) and is_this_package(str(library.get("whl", "")))


def _is_fit(task: Mapping[str, Any], additions: Additions) -> bool:
    kind = _kind(task)
    if kind == _SUBMIT:
        return is_fit(application_in(listed(mapping(task[kind], kind).get("parameters"), kind)), additions)
    if additions.application is None:
        return kind in _OF_PYTHON
    # A task without an application is the place of a stage.
    return kind is None or (kind == _SCRIPT and is_fit(mapping(task[kind], kind).get("python_file"), additions))


def _kind(task: Mapping[str, Any]) -> str | None:
    return next((name for name, value in task.items() if name.endswith("_task") and value is not None), None)
