"""
Handover of an attempt from an operator to its submitted driver.

The handover is stored in one environment variable. In all supported modes, Spark passes variables with the prefix
``SPARK_`` to the driver. It does not log them, show them on its pages or pass them to executors.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError

HANDOVER_VARIABLE = "SPARK_STATECHECK_HANDOVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver for its storage, checkpoints and state."""

    tolerable_failed_checkpoints: int = -1
    """Number of consecutive checkpoint failures that the stage tolerates; ``-1`` for no limit."""
    overhead_budget: float | None = None
    """Maximum share of the stage's time for checkpointing; ``None`` for no limit."""
    checkpoint_interval: str | None = None
    """Minimum interval between automatic checkpoints in milliseconds, or ``auto``; ``None`` for no minimum."""
    min_pause_ms: int = 0
    """Minimum pause in milliseconds between a completed checkpoint and the next automatic checkpoint."""
    data_inline_threshold: int = 20 * 1024
    """Maximum size in bytes of a value that is stored in the metadata."""
    savepoint_dir: str | None = None
    """Directory for savepoints without a target."""
    allowed_locations: tuple[str, ...] = ()
    """Further URIs where checkpoints may reference files."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec filesystem, which may contain credentials."""
    logical_date: datetime | None = None
    """Logical date of the Dag run, which is the time for the expiry of state."""
    state_config: dict[str, str] = field(default_factory=dict)
    """Settings of the state backend and the checkpoint storage, by Flink's configuration keys."""
    parallelism: int | None = None
    """Number of subtasks; ``None`` for the parallelism of the stage."""
    renamed_uids: dict[str, str] = field(default_factory=dict)
    """New uids by old uids."""
    allow_non_restored_state: bool = False
    """Whether a restore may skip state that does not belong to any operator of the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Access of a driver to its attempt."""

    url: str
    """Root URL of the coordinator's server."""
    token: str = field(repr=False)
    """Token for this attempt only."""
    registration: RegisterAttempt
    """Registration that the operator sent; the driver repeats it and gets the same grant."""
    driver: DriverSettings

    def environment(self) -> dict[str, str]:
        """
        Return the environment variable of the handover. It contains a token; pass it to the child process only.

        :raises InvalidConfigurationError: The options of the storage are not plain values.
        """
        try:
            return {HANDOVER_VARIABLE: json.dumps(encode(self))}
        except (TypeError, ValueError):
            # The options may be credentials, and the suppressed error may quote them.
            names = ", ".join(sorted(self.driver.storage_options))
            raise InvalidConfigurationError(
                f"Expected plain values as options of the checkpoint storage ({names}), which are passed to a driver in "
                f"another process, found objects; set storage_options in the connection's extra."
            ) from None


def take_handover(environment: MutableMapping[str, str] | None = None) -> Handover:
    """
    Read the handover and remove it from the environment, which child processes inherit.

    :param environment: Environment variables, by default those of this process.
    :raises EnvironmentNotReadyError: There is no handover, or it has another version.
    """
    text = (os.environ if environment is None else environment).pop(HANDOVER_VARIABLE, None)
    if not text:
        raise EnvironmentNotReadyError(
            "Expected a driver that CheckpointedSparkSubmitOperator submitted, found a process without a handover; submit "
            "the application with that operator, or use StageContext.open outside of Airflow."
        )
    try:
        return decode(Handover, json.loads(text))
    except ValueError:
        # The text contains the token, and the suppressed error may quote it.
        raise EnvironmentNotReadyError(
            f"Expected a handover of this version in {HANDOVER_VARIABLE}, found another; run the driver with the package "
            f"that the operator ships."
        ) from None
