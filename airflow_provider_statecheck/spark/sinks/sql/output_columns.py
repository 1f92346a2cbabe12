"""Whether output has the columns that a table needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.sql.tables import CHECKPOINT, LINEAGE, PLACE, ROW


def require_columns(columns: Any, keys: Sequence[str]) -> None:
    """
    Refuse output whose columns no table can have, or that lacks the columns by which rows replace others.

    :param columns: Arrow schema of the output.
    :raises UnsupportedStateError: Says which columns.
    """
    names = list(columns.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise UnsupportedStateError(
            f"Expected columns with different names for a table, found {', '.join(repeated) or 'none'} "
            f"{'more than once' if repeated else 'at all'}; rename them."
        )
    reserved = [name for name in (LINEAGE, CHECKPOINT, ROW, PLACE) if name in names]
    if reserved:
        raise UnsupportedStateError(
            f"Expected no column with the name {reserved[0]!r}, which the sink adds; rename it."
        )
    missing = [name for name in keys if name not in names]
    if missing:
        raise UnsupportedStateError(
            f"Expected the columns of upsert_by in the output, found {', '.join(missing)} missing; there are {', '.join(names)}."
        )
