"""Errors that Airflow does not retry, from the tree of the package."""

from __future__ import annotations

import inspect

from airflow_provider_statecheck.exceptions import A_RETRY_CANNOT_HELP
from scripts.docs.tables import code, table


def unretried_errors_table() -> str:
    """Return the table of the errors that fail a task without a retry, with links to their sections."""
    rows = (
        (f"[{code(kind.__name__)}](#{kind.code})", (inspect.getdoc(kind) or "").partition("\n")[0].replace("``", "`"))
        for kind in sorted(A_RETRY_CANNOT_HELP, key=lambda kind: kind.__name__)
    )
    return table(("Error", "Meaning"), rows)
