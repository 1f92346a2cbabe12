"""
What an operator hands to the driver that it submits.

It travels in one environment variable. Spark passes variables whose names begin with ``SPARK_`` on to a driver in every
mode that is supported, writes none of them to a log or a page, and gives them to no executor.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.wire import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """How a driver opens its storage, and what its checkpoints may cost."""

    tolerable_failed_checkpoints: int = -1
    """How many checkpoints in a row may fail before the stage fails; ``-1`` for any number."""
    overhead_budget: float | None = None
    """Which part of the stage's time checkpointing may take; ``None`` for any."""
    checkpoint_interval: str | None = None
    """How much time lies between two checkpoints that loops and stages with state take by themselves: milliseconds, or
    ``auto``; ``None`` for any."""
    min_pause_ms: int = 0
    """How much time lies after a completed checkpoint before the next one is taken by itself."""
    data_inline_threshold: int = 20 * 1024
    """Up to how many bytes small values are written into the metadata."""
    savepoint_dir: str | None = None
    """Where savepoints go whose request names no place."""
    allowed_locations: tuple[str, ...] = ()
    """Where checkpoints may name files beside their own directory and that of savepoints."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec filesystem; they may be credentials."""
    logical_date: datetime | None = None
    """Of the Dag run: by it state expires."""
    state_config: dict[str, str] = field(default_factory=dict)
    """Which state backend a stage has that names none, and how it keeps state, by Flink's keys."""
    parallelism: int | None = None
    """How many subtasks a stage with state has; ``None`` for as many as it says itself."""
    renamed_uids: dict[str, str] = field(default_factory=dict)
    """Names of state that have changed: the old one and the new one."""
    allow_non_restored_state: bool = False
    """Whether state that nothing asks for any more may be left out."""


HANDOVER_VARIABLE = "SPARK_STATECHECK_HANDOVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """All that a driver needs to speak for its attempt."""

    url: str
    """Root of the server that has the coordinator's API."""
    token: str = field(repr=False)
    """It opens this attempt alone."""
    registration: RegisterAttempt
    """As the operator sent it; the driver repeats it and gets the same grant."""
    driver: DriverSettings

    def environment(self) -> dict[str, str]:
        """
        Return the variable for the environment of a child process, and for nothing else.

        :raises InvalidConfigurationError: for options of the storage that are no plain values.
        """
        try:
            return {HANDOVER_VARIABLE: json.dumps(encode(self))}
        except (TypeError, ValueError):
            # The options may be credentials, so neither they nor the error that quotes them may be shown.
            names = ", ".join(sorted(self.driver.storage_options))
            raise InvalidConfigurationError(
                f"Expected plain values as options of the checkpoint storage ({names}), for they are handed to a driver in "
                f"another process, found objects; give storage_options in the connection's extra."
            ) from None


def take_handover(environment: MutableMapping[str, str] | None = None) -> Handover:
    """
    Read the handover and remove it, so that no child of the driver inherits it.

    :param environment: The variables, by default this process's own.
    :raises EnvironmentNotReadyError: if there is none, or one of another version.
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
        # Neither the text nor the error that quotes it may be shown: the token is in it.
        raise EnvironmentNotReadyError(
            f"Expected the handover of this version in {HANDOVER_VARIABLE}, found another; let the driver use the package "
            f"that the operator ships."
        ) from None
