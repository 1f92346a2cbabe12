"""What one Spark task hands to the driver so that its transaction can be committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommittable:
    """The transaction of one task."""

    lineage: str
    epoch: int
    subtask: int
    transaction: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """
        Return it as plain values.

        :raises UnsupportedStateError: if the transaction is not plain JSON.
        """
        document = {"format_version": FORMAT_VERSION, **asdict(self)}
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
    def from_json(cls, document: Mapping[str, Any]) -> TransactionCommittable:
        """
        Return what a task handed over.

        :raises CorruptStateError: if it is something else.
        """
        try:
            if int(document["format_version"]) != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                lineage=str(document["lineage"]),
                epoch=int(document["epoch"]),
                subtask=int(document["subtask"]),
                transaction=dict(document["transaction"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected a transaction of format {FORMAT_VERSION}, found {str(document)[:100]!r}; restore with the version "
                "that wrote it, or from another checkpoint."
            ) from error
