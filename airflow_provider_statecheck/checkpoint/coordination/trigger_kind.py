"""Which kind of checkpoint somebody asks for by hand."""

from __future__ import annotations

from enum import StrEnum

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


class TriggerKind(StrEnum):
    """How much of a checkpoint is written anew."""

    CONFIGURED = "configured"
    """As much as of a periodic one."""
    FULL = "full"
    """All of it: it names no file of an earlier one."""
    INCREMENTAL = "incremental"
    """What changed, where the state backend can tell."""


def properties_of(
    asked: CheckpointProperties | TriggerKind | None, policy: CheckpointRetentionPolicy
) -> CheckpointProperties:
    """
    Return the properties of a checkpoint that somebody asks for.

    :param policy: After which ends of the job it stays, if only its kind is given.
    :raises InvalidConfigurationError: if nothing is given.
    """
    if isinstance(asked, CheckpointProperties):
        return asked
    if not isinstance(asked, TriggerKind):
        kinds = ", ".join(kind.value for kind in TriggerKind)
        raise InvalidConfigurationError(f"Expected a kind of checkpoint ({kinds}) or its properties, found {asked!r}.")
    return CheckpointProperties.for_checkpoint(policy, is_full=asked is TriggerKind.FULL)
