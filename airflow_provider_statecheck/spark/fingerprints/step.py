"""Tell whether a step would compute today what it computed when its snapshot was taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.fingerprints import code_digest, plan_digest

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
    Return a digest that changes when what a step computes changes.

    What counts, for a callable: its own code with constants and literal defaults, the code of the user's functions,
    methods and UDFs that it reaches, and the plan of every DataFrame that it captures. For a DataFrame: its analyzed
    plan, its schema, the code of Python UDFs in it and the paths it reads. A snapshot that is read counts by its
    fingerprint and not by its place, so one that was computed anew with the same result changes nothing.

    What does not count: comments, blank lines, docstrings, line numbers and file names; installed packages; the rows
    of a source or of a DataFrame made from local data; what stands before a ``localCheckpoint`` or ``checkpoint`` of
    Spark's own; and every plain value that a callable captures, whether by
    closure, global or attribute. A run id or a date among these would make each try a different step. A threshold or a
    list of columns that should count goes into ``version``. So does anything that only a changed package would show.

    Equal code gives equal fingerprints in each process of one minor version of Python and one version of Spark.

    :param build: The step's builder, or its DataFrame.
    :param version: The user's own word for what the step computes.
    :param snapshots: The fingerprint of each snapshot that the step may read, by the snapshot's URI.
    :param salt: Sets apart what is equal otherwise.
    """
    from pyspark.sql import DataFrame

    if isinstance(build, DataFrame):
        kind, body = "plan", plan_digest.plan_text(build, snapshots, _udf_code)
    elif callable(build):
        kind, body = "code", code_digest.code_digest(build, _Describe(snapshots))
    else:
        raise InvalidConfigurationError(
            f"A step is a function or a DataFrame, found {type(build).__name__}; wrap it: lambda: ..."
        )
    document = json.dumps([FORMAT_VERSION, version, salt, kind, body])
    return hashlib.sha256(document.encode()).hexdigest()


def combined_fingerprint(*parts: str) -> str:
    """Return one digest for a step that is made of several parts, such as a loop."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, "combined", *parts]).encode()).hexdigest()


class _Describe:
    """
    Gives the text of the captured values that count.

    :param snapshots: As for :func:`step_fingerprint`.
    """

    def __init__(self, snapshots: Mapping[str, str]) -> None:
        self._snapshots = snapshots

    def __call__(self, value: object) -> str | None:
        """Return the text of a DataFrame or of a UDF's signature, ``None`` for anything else."""
        from pyspark.sql import DataFrame

        if isinstance(value, DataFrame):
            text = plan_digest.plan_text(value, self._snapshots, _udf_code)
            return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        return_type = _udf_return_type(value)
        return None if return_type is None else f"udf {return_type}"


def _udf_code(function: object) -> str:
    # A function in a plan was pickled, which a captured DataFrame cannot be: there is nothing to describe in it.
    return code_digest.code_digest(function)


def _udf_return_type(value: object) -> str | None:
    from pyspark.sql.udf import UserDefinedFunction

    # The code of a UDF is reached through the function that pyspark has wrapped.
    original = vars(value).get("_unwrapped") if hasattr(value, "__dict__") else None
    if not isinstance(original, UserDefinedFunction):
        return None
    return f"{original.returnType.simpleString()} {original.evalType}"
