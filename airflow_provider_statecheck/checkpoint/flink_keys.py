"""Settings of a stage under Flink's names: which of them ``[statecheck]`` takes, and what each is there."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_option import ConfigOption
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

log = logging.getLogger(__name__)

_BACKEND = "state.backend"


@dataclass(frozen=True, slots=True)
class _Counterpart:
    option: ConfigOption[Any]
    """Flink's setting."""
    convert: Callable[[Any], Any] = lambda value: value
    """Makes its value one of this library's setting."""


_COUNTERPARTS = {
    "checkpoint_dir": _Counterpart(CheckpointConfig.checkpoint_dir),
    "num_retained": _Counterpart(CheckpointConfig.num_retained),
    "checkpoint_timeout_seconds": _Counterpart(CheckpointConfig.timeout, timedelta.total_seconds),
    "tolerable_failed_checkpoints": _Counterpart(CheckpointConfig.tolerable_failed_checkpoints),
    "checkpoint_interval": _Counterpart(CheckpointConfig.checkpoint_interval),
    "min_pause": _Counterpart(CheckpointConfig.min_pause_between_checkpoints),
    "externalized_checkpoint_retention": _Counterpart(CheckpointConfig.externalized_checkpoint_retention),
    "savepoint_dir": _Counterpart(CheckpointConfig.savepoint_dir),
    "data_inline_threshold": _Counterpart(CheckpointConfig.data_inline_threshold),
}


def find(name: str, section: Mapping[str, str]) -> Any:
    """
    Return a setting of a stage that a section has under one of Flink's names, with a warning that says its own.

    :param name: The stage's own name of it.
    :param section: What the section has under names with a dot.
    :return: ``None`` where it has none of them.
    :raises InvalidConfigurationError: for a value out of range, naming the key.
    """
    counterpart = _COUNTERPARTS.get(name)
    key = counterpart.option.key_in(section) if counterpart else None
    if counterpart is None or key is None:
        return None
    log.warning("%s is read as %s, which is its name in [statecheck].", key, name)
    config = CheckpointConfig()
    counterpart.option.read(config, section)
    return counterpart.convert(getattr(config, counterpart.option.name))


def state_backend_settings(section: Mapping[str, str]) -> dict[str, str]:
    """Return what a section says of the state backend, by Flink's keys."""
    of_checkpoints = {key for option in CheckpointConfig.options() for key in (option.key, *option.old_keys)}
    return {key: section[key] for key in section if _is_of_backend(key) and key not in of_checkpoints}


def refuse_useless(section: Mapping[str, str]) -> None:
    """
    Refuse what a section has under names with a dot and no stage acts on.

    :raises InvalidConfigurationError: naming the first of them.
    """
    used = {key for each in _COUNTERPARTS.values() for key in (each.option.key, *each.option.old_keys)}
    known = {key for option in CheckpointConfig.options() for key in (option.key, *option.old_keys)}
    for key in sorted(section.keys() - used - state_backend_settings(section).keys()):
        (nearest, *_) = difflib.get_close_matches(key, sorted(used), n=1, cutoff=0.0)
        why = "which no stage acts on" if key in known else f"which is no setting (did you mean {nearest}?)"
        raise InvalidConfigurationError(
            f"Expected settings that act in the section [statecheck], found {key}, {why}; remove it.",
            key=key,
            value=section[key],
        )


def _is_of_backend(key: str) -> bool:
    return key == _BACKEND or key.startswith(f"{_BACKEND}.")
