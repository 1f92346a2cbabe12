"""Fingerprint of a step, which changes with the code and the inputs of the step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.code_digest import code_digest
from airflow_provider_statecheck.spark.plan_digest import plan_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT_VERSION = 1


def step_fingerprint(
    build: Callable[..., Any] | DataFrame,
    *,
    version: str | None,
    snapshots: Mapping[str, str],
    salt: str = "",
) -> str:
    """
    Return a digest that changes with the code and the inputs of a step.

    The fingerprint of a callable covers its code with constants and literal defaults, the code of user functions,
    methods and UDFs that it reaches, and the plans of captured DataFrames. That of a DataFrame covers its analyzed
    plan, its schema, the code of its Python UDFs and the paths that it reads. A snapshot is represented by its
    fingerprint, not by its location, and by its lineage if it has replaced another snapshot of its step.

    Not covered are comments, blank lines, docstrings, line numbers and file names; installed packages; the rows of
    sources and of local data; views that a callable reads by name; the plan before Spark's own ``localCheckpoint``
    or ``checkpoint``; and plain values that a callable captures by a closure, global or attribute, because a run id
    or a date would change the fingerprint in each attempt. Use ``version`` for such values if they matter, and for
    changed packages.

    Equal code has equal fingerprints in all processes with the same minor version of Python and version of Spark.

    :param build: Builder of the step, or its DataFrame.
    :param version: Version of the step that the user has set.
    :param snapshots: Fingerprints of the snapshots that the step may read, by their URIs.
    :param salt: Further text that the fingerprint depends on.
    """
    from pyspark.sql import DataFrame

    if isinstance(build, DataFrame):
        kind, body = "plan", plan_text(build, snapshots, _udf_code)
    elif callable(build):
        kind, body = "code", code_digest(build, partial(described, snapshots))
    else:
        raise InvalidConfigurationError(
            f"Expected a function or a DataFrame for a step, found {type(build).__name__}; wrap it: lambda: ..."
        )
    require("version", version, lambda each: bool(json.dumps(each)), "text, such as str(day)")
    document = json.dumps([FORMAT_VERSION, version, salt, kind, body])
    return hashlib.sha256(document.encode()).hexdigest()


def combined_fingerprint(*parts: str) -> str:
    """Return the fingerprint of a step with several parts, such as a loop."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, "combined", *parts]).encode()).hexdigest()


def described(snapshots: Mapping[str, str], value: object) -> str | None:
    """Return the text of a captured DataFrame or of a UDF's signature, ``None`` for anything else."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        text = plan_text(value, snapshots, _udf_code)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return_type = _udf_return_type(value)
    return None if return_type is None else f"udf {return_type}"


def _udf_code(function: object) -> str:
    # Without a description of values: a pickled function cannot capture a DataFrame.
    return code_digest(function)


def _udf_return_type(value: object) -> str | None:
    from pyspark.sql.udf import UserDefinedFunction

    # The code of a UDF is visited by its wrapped function.
    original = vars(value).get("_unwrapped") if hasattr(value, "__dict__") else None
    if not isinstance(original, UserDefinedFunction):
        return None
    return f"{original.returnType.simpleString()} {original.evalType}"
