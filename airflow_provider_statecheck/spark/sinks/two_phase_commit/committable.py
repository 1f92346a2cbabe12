"""What one Spark task hands to the driver so that its transaction can be committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.task_committable import TaskCommittable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommittable(TaskCommittable):
    """The transaction of one task."""

    KIND: ClassVar[str] = "a transaction"

    transaction: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """
        Return it as plain values.

        :raises UnsupportedStateError: if the transaction is not plain JSON.
        """
        document = TaskCommittable.to_json(self)
        try:
            is_same = json.loads(json.dumps(document)) == document
        except (TypeError, ValueError):
            is_same = False
        if not is_same:
            raise UnsupportedStateError(
                "Expected a transaction of plain JSON values with text as keys, because it is kept in checkpoints, found "
                f"{type(self.transaction).__name__} with other values; return what names it, not what works on it."
            )
        return document

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"transaction": dict(document["transaction"])}
