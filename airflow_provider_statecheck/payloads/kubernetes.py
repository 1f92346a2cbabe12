"""
Applications of the Spark operator on Kubernetes.

Spark in the image reads the package, so its URI gets the scheme of Hadoop's clients. The image needs the client of the
storage, such as ``hadoop-aws``, as for any other file that the specification names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

_APPLICATION = "SparkApplication"


def spark_application_with(spec: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return a ``SparkApplication`` with additions.

    :param spec: The content of ``application_file``, or ``template_spec``, with the resource itself or below ``spark``.
    :raises InvalidConfigurationError: if it is a schedule, or its application is not in Python.
    """
    if "spark" in spec:
        return {**spec, "spark": spark_application_with(mapping(spec["spark"], "spark"), additions)}
    kind = spec.get("kind")
    if kind not in (None, _APPLICATION):
        raise unfit_job(f"a {kind}", f"a {_APPLICATION}, which runs once for each task")
    return {**spec, "spec": _with_additions(mapping(spec.get("spec"), "spec"), of_hadoop(additions))}


def _with_additions(spec: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    if spec.get("type") not in (None, "Python"):
        raise unfit_job(f"type {spec['type']} in spec", "type Python in spec")
    file, arguments = application_of(
        spec.get("mainApplicationFile"), spec.get("arguments"), additions, "spec.mainApplicationFile"
    )
    deps = mapping(spec.get("deps"), "spec.deps")
    files = with_file(deps.get("pyFiles"), additions.package, "spec.deps.pyFiles")
    values = {
        "mainApplicationFile": file,
        "arguments": arguments,
        "sparkConf": with_property(spec.get("sparkConf"), additions, "spec.sparkConf"),
        "deps": None if files is None else {**deps, "pyFiles": files},
    }
    return with_values(spec, values)
