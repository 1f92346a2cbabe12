"""
Steps and job runs of Amazon EMR: on EC2, on EKS and serverless.

All of them run ``spark-submit``, so additions are options of it. Those of a job run are in one text; they replace what
``spark-defaults`` of its configuration says, so files that are named there are taken over.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    is_fit,
    listed,
    mapping,
    of_amazon,
    only,
    unfit_job,
    with_values,
)
from airflow_provider_statecheck.payloads.submit_options import PYTHON_FILES, application_in, command_with, text_with

_ON_EKS = "sparkSubmitJobDriver"
_SERVERLESS = "sparkSubmit"
_RUNNER = "command-runner.jar"
_SUBMIT = "spark-submit"


def steps_with(steps: Sequence[Mapping[str, Any]] | str, additions: Additions) -> list[dict[str, Any]]:
    """
    Return the steps of a cluster with additions to the only one that runs a Python application.

    :param steps: ``steps`` of the provider's ``EmrAddStepsOperator``, also as the text of a list.
    :raises InvalidConfigurationError: if not exactly one step runs a Python application with ``spark-submit``.
    """
    given = [mapping(each, "steps") for each in listed(_read(steps), "steps")]
    submitted = [place for place, step in enumerate(given) if _is_submitted(step)]
    fit = [place for place in submitted if is_fit(application_in(_words(given[place])), additions)]
    chosen = only(fit or submitted, [f"the step {_name(step)!r}" for step in given], "step")
    changed = _step_with(given[chosen], of_amazon(additions))
    return [changed if place == chosen else dict(step) for place, step in enumerate(given)]


def container_job_with(
    job_driver: Mapping[str, Any], additions: Additions, configuration_overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """
    Return the driver of a job run on EKS with additions.

    :param job_driver: ``job_driver`` of the provider's ``EmrContainerOperator``.
    :param configuration_overrides: ``configuration_overrides`` of that operator, which are only read.
    :raises InvalidConfigurationError: if it does not run a Python application.
    """
    return _job_with(job_driver, _ON_EKS, additions, configuration_overrides)


def serverless_job_with(
    job_driver: Mapping[str, Any], additions: Additions, configuration_overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """
    Return the driver of a serverless job run with additions.

    :param job_driver: ``job_driver`` of the provider's ``EmrServerlessStartJobOperator``.
    :param configuration_overrides: ``configuration_overrides`` of that operator, which are only read.
    :raises InvalidConfigurationError: if it does not run a Python application.
    """
    return _job_with(job_driver, _SERVERLESS, additions, configuration_overrides)


def _job_with(
    job_driver: Mapping[str, Any], kind: str, additions: Additions, overrides: Mapping[str, Any] | None
) -> dict[str, Any]:
    if mapping(job_driver, "job_driver").get(kind) is None:
        raise unfit_job(" and ".join(job_driver) or "none", f"{kind} in job_driver")
    driver = mapping(job_driver[kind], f"job_driver.{kind}")
    changed = of_amazon(additions)
    file, arguments = application_of(
        driver.get("entryPoint"), driver.get("entryPointArguments"), changed, f"job_driver.{kind}.entryPoint"
    )
    options = text_with(driver.get("sparkSubmitParameters"), changed, _files_in(overrides))
    values = {"entryPoint": file, "entryPointArguments": arguments, "sparkSubmitParameters": options}
    return {**job_driver, kind: with_values(driver, values)}


def _files_in(overrides: Mapping[str, Any] | None) -> str | None:
    place = "configuration_overrides.applicationConfiguration"
    configurations = listed(mapping(overrides, "configuration_overrides").get("applicationConfiguration"), place)
    for each in configurations:
        if mapping(each, place).get("classification") == "spark-defaults":
            files = mapping(each.get("properties"), f"{place}.properties").get(PYTHON_FILES)
            return None if files is None else str(files)
    return None


def _step_with(step: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    jar_step = mapping(step["HadoopJarStep"], "HadoopJarStep")
    words = command_with(_words(step), additions, f"the step {_name(step)!r}")
    return {**step, "HadoopJarStep": {**jar_step, "Args": [jar_step["Args"][0], *words]}}


def _is_submitted(step: Mapping[str, Any]) -> bool:
    jar_step = mapping(step.get("HadoopJarStep"), "HadoopJarStep")
    arguments = listed(jar_step.get("Args"), "HadoopJarStep.Args")
    is_run = _last_part(jar_step.get("Jar")) == _RUNNER
    return is_run and bool(arguments) and _last_part(arguments[0]) == _SUBMIT


def _words(step: Mapping[str, Any]) -> list[str]:
    return list(step["HadoopJarStep"]["Args"][1:])


def _name(step: Mapping[str, Any]) -> str:
    return str(step.get("Name", ""))


def _last_part(path: Any) -> str:
    return str(path or "").rpartition("/")[2]


def _read(steps: Any) -> Any:
    """Return steps, which the provider also takes as a rendered template with the text of a list."""
    if not isinstance(steps, str):
        return steps
    try:
        return ast.literal_eval(steps)
    except (SyntaxError, ValueError):
        return steps
