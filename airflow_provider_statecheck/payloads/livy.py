"""
Batches of Apache Livy.

They have the names of the provider's ``LivyOperator``. Spark of the server reads the package, so its URI gets the
scheme of Hadoop's clients, which Amazon's runtimes know as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    of_hadoop,
    unfit_job,
    with_file,
    with_property,
    with_values,
)


def batch_with(params: Mapping[str, Any], additions: Additions) -> dict[str, Any]:
    """
    Return the parameters of a batch with additions.

    :param params: ``spark_params`` of the provider's operator.
    :raises InvalidConfigurationError: if the application is not in Python.
    """
    if params.get("class_name"):
        raise unfit_job("the class of a JVM application in class_name")
    changed = of_hadoop(additions)
    file, arguments = application_of(params.get("file"), params.get("args"), changed, "file")
    values = {
        "file": file,
        "args": arguments,
        "py_files": with_file(params.get("py_files"), changed.package, "py_files"),
        "conf": with_property(params.get("conf"), additions, "conf"),
    }
    return with_values(params, values)
