"""
Jobs and batches of Google Dataproc.

Both are mappings with the fields of the service's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    mapping,
    of_hadoop,
    unfit_job,
    with_file,
    with_property,
    with_values,
)

_PYSPARK_JOB = "pyspark_job"
_PYSPARK_BATCH = "pyspark_batch"


def job_with(job: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return a job on a cluster with additions.

    :param job: ``job`` of the provider's ``DataprocSubmitJobOperator``.
    :raises InvalidConfigurationError: if it does not run a Python application.
    """
    _require(job, _PYSPARK_JOB)
    pyspark = mapping(job[_PYSPARK_JOB], _PYSPARK_JOB)
    properties = with_property(pyspark.get("properties"), additions, f"{_PYSPARK_JOB}.properties")
    return {**job, _PYSPARK_JOB: {**_with_files(pyspark, of_hadoop(additions), _PYSPARK_JOB), "properties": properties}}


def batch_with(batch: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return a serverless batch with additions.

    :param batch: ``batch`` of the provider's ``DataprocCreateBatchOperator``, as a mapping.
    :raises InvalidConfigurationError: if it does not run a Python application.
    """
    _require(batch, _PYSPARK_BATCH)
    pyspark = mapping(batch[_PYSPARK_BATCH], _PYSPARK_BATCH)
    runtime = mapping(batch.get("runtime_config"), "runtime_config")
    properties = with_property(runtime.get("properties"), additions, "runtime_config.properties")
    return {
        **batch,
        _PYSPARK_BATCH: _with_files(pyspark, of_hadoop(additions), _PYSPARK_BATCH),
        "runtime_config": {**runtime, "properties": properties},
    }


def _with_files(pyspark: Mapping[str, Any], additions: Additions, place: str) -> dict[str, Any]:
    file, arguments = application_of(
        pyspark.get("main_python_file_uri"), pyspark.get("args"), additions, f"{place}.main_python_file_uri"
    )
    values = {
        "main_python_file_uri": file,
        "args": arguments,
        "python_file_uris": with_file(pyspark.get("python_file_uris"), additions.package, f"{place}.python_file_uris"),
    }
    return with_values(pyspark, values)


def _require(spec: Any, kind: str) -> None:
    if not isinstance(spec, Mapping):
        raise InvalidConfigurationError(
            f"Expected a mapping with {kind}, found a value of type {type(spec).__name__}; pass a message as a "
            "mapping, with its method to_dict."
        )
    if spec.get(kind) is None:
        ending = kind.rpartition("_")[2]
        found = [name for name in spec if name.endswith(f"_{ending}") and spec[name] is not None]
        raise unfit_job(
            " and ".join(found) or "none", f"a job with {kind}" if ending == "job" else f"a batch with {kind}"
        )
