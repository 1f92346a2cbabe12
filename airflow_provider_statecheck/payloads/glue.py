"""
Runs of jobs of AWS Glue.

A run's argument replaces that of the job of the same name, so the mailbox is an argument of its own rather than a
property in ``--conf``, with which the properties of the job would be lost. Files of the job are taken over where the
job's definition is at hand. The script finds the mailbox in its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    mapping,
    of_amazon,
    unfit_job,
    with_joined_file,
    with_values,
)
from airflow_provider_statecheck.spark.driver.application import MAILBOX_ARGUMENT, STAGE_ARGUMENT

_FILES = "--extra-py-files"
_SCRIPT = "--scriptLocation"
_LANGUAGE = "--job-language"
_ON_SPARK = (None, "glueetl", "gluestreaming")


def run_with(
    script_args: Mapping[str, Any] | None, additions: Additions, job: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """
    Return the arguments of a run with additions.

    :param script_args: ``script_args`` of the provider's ``GlueJobOperator``.
    :param job: Definition of the job with ``Command`` and ``DefaultArguments``, as far as it is known:
        ``create_job_kwargs`` of the operator, or what Glue has.
    :raises InvalidConfigurationError: if the job does not run a Python application on Spark.
    """
    given = mapping(script_args, "script_args")
    definition = mapping(job, "create_job_kwargs")
    arguments = {**mapping(definition.get("DefaultArguments"), "create_job_kwargs.DefaultArguments"), **given}
    _require_spark(mapping(definition.get("Command"), "create_job_kwargs.Command"), arguments)
    changed = of_amazon(additions)
    values = {
        MAILBOX_ARGUMENT: changed.mailbox,
        _FILES: None if changed.package is None else with_joined_file(arguments.get(_FILES), changed.package),
        **_stage(given, changed),
    }
    return with_values(given, values)


def _stage(given: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    if additions.application is None:
        return {}
    file, arguments = application_of(given.get(_SCRIPT), (), additions, f"script_args[{_SCRIPT!r}]")
    # Arguments of Glue are pairs.
    return {_SCRIPT: file, STAGE_ARGUMENT: " ".join(arguments or ())}


def _require_spark(command: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    if command.get("Name") not in _ON_SPARK:
        raise unfit_job(f"a job of type {command['Name']}")
    if str(arguments.get(_LANGUAGE) or "python").lower() != "python":
        raise unfit_job(f"{arguments[_LANGUAGE]} in script_args[{_LANGUAGE!r}]")
    for script in (arguments.get(_SCRIPT), command.get("ScriptLocation")):
        if str(script or "").lower().endswith((".scala", ".jar")):
            raise unfit_job("a Scala script")
