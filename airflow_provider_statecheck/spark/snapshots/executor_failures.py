"""What the Python of the executors lacks, told in one line instead of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.storage.schemes import EXTRAS
from airflow_provider_statecheck.storage.uris import redact, scheme_of

_PACKAGE = "airflow_provider_statecheck"
# Nothing else: what the user's own functions import is not ours to explain.
_OURS = (_PACKAGE, "fsspec", "pyarrow", "s3fs", "gcsfs", "adlfs", "aiobotocore")
_MISSING = re.compile(rf"No module named '({'|'.join(_OURS)})[.']|\b(pyarrow)\b[^\n]*must be installed", re.IGNORECASE)


@contextmanager
def explained(data_uri: str) -> Iterator[None]:
    """
    Run a job whose tasks use this package.

    :param data_uri: What they write.
    :raises EnvironmentNotReadyError: if they failed for want of a package.
    """
    try:
        yield
    except Exception as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        raise _lacking((found.group(1) or found.group(2)).lower(), data_uri) from error


def _lacking(name: str, data_uri: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected the package {name} in the Python of Spark's executors, to write to {redact(data_uri)}; found none. "
        f"{_advice(name, data_uri)}",
        package=name,
    )


def _advice(name: str, data_uri: str) -> str:
    if name == _PACKAGE:
        return "Install airflow-provider-statecheck there, or ship it with spark.submit.pyFiles."
    extra = EXTRAS.get(scheme_of(data_uri))
    if extra is None or name in ("fsspec", "pyarrow"):
        return f"Install it there: pip install {name}."
    return f"Install it there: pip install 'airflow-provider-statecheck[{extra}]'."
