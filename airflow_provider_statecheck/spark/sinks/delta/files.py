"""The files below a Delta table, of which only those of one lineage can be changed."""

from __future__ import annotations

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.sinks.delta.names import lineage_of_data_file
from airflow_provider_statecheck.spark.sinks.names import lineage_directory
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles


class DeltaFiles(TargetFiles):
    """Data files that a lineage wrote, and its ledger; never the log of the table."""

    __slots__ = ()

    @override
    def _require_ours(self, name: str) -> None:
        is_plain = not {"", ".", ".."} & set(name.split("/"))
        is_ours = name.startswith(f"{lineage_directory(self.lineage)}/") or lineage_of_data_file(name) == self.lineage
        if not is_plain or not is_ours:
            raise CoordinatorError(
                f"Expected a file of lineage {self.lineage} in the table {self.target}, found {name!r}; nothing was changed."
            )
