"""An operator of the job that is about to be restored."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.key_groups import require_parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTarget:
    """
    What a restore asks of an operator; the Airflow task that hosts it is not part of its identity.

    :raises InvalidConfigurationError: unless 1 <= parallelism <= max_parallelism <= 32768.
    """

    operator_id: OperatorId
    uid: str = ""
    """Empty where the id was generated."""
    name: str = ""
    parallelism: int
    max_parallelism: int
    is_max_parallelism_configured: bool = False
    """Whether a person chose it, in contrast to one that was derived from the parallelism."""
    upstream: tuple[str, ...] = ()
    """The uids of the operators that it reads from."""

    def __post_init__(self) -> None:
        require_parallelism(self.parallelism, self.max_parallelism)
