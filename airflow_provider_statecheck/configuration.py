"""
Settings of a stage: operator arguments, then ``[statecheck]`` of Airflow's configuration.

An argument takes precedence over the section. In the section, an option takes precedence over its counterpart in Flink,
a key with a dot such as ``state.checkpoints.dir``.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.config import (
    STORAGE_OPTIONS,
    CheckpointConfig,
    ExternalizedCheckpointCleanup,
    parse_interval,
)
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import OnClear, OnOverlap
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import (
    AllowedLocations,
    normalise_base,
    normalise_pointer,
    parse_locations,
)

log = logging.getLogger(__name__)

SECTION = "statecheck"
_BACKEND = "state.backend"
# float() accepts infinity, but a database cannot add it to a time.
_MAX_TIMEOUT_SECONDS = 366 * 24 * 3600.0
_MAX_RATE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class StatecheckSettings:
    """Validated settings of a stage."""

    checkpoint_dir: str
    storage_conn_id: str | None
    num_retained: int
    retained_runs: int
    checkpoint_timeout_seconds: float
    tolerable_failed_checkpoints: int
    overhead_budget: float | None
    checkpoint_interval: timedelta | str | None
    """A duration, ``auto``, or ``None`` for no periodic checkpoints by time."""
    min_pause: timedelta
    externalized_checkpoint_retention: ExternalizedCheckpointCleanup
    savepoint_dir: str | None
    data_inline_threshold: int
    allowed_locations: tuple[str, ...]
    """Additional locations where checkpoints may reference files."""
    on_clear: OnClear
    on_overlap: OnOverlap
    state_config: dict[str, str]
    """Settings of the state backend and the checkpoint storage, with Flink's keys."""

    @classmethod
    def from_airflow(cls, **arguments: Any) -> Self:
        """
        Read the settings.

        :param arguments: Operator arguments; ``None`` means not given.
        :raises InvalidConfigurationError: if a setting is missing, unknown or out of range.
        """
        _refuse_unknown(arguments)
        section = _flink_section()
        reject_unused_keys(section)
        values = {key: _value(key, arguments.get(key), parse, section) for key, parse in _PARSERS.items()}
        _check(values)
        return cls(**values, state_config=state_backend_settings(section) | storage_settings(section))


def configured_savepoint_dir() -> str | None:
    """
    Return the configured default directory for savepoints.

    :raises InvalidConfigurationError: if the option is not the URI of a directory.
    """
    directory: str | None = _value("savepoint_dir", None, _PARSERS["savepoint_dir"], _flink_section())
    return directory


def configured_locations() -> AllowedLocations:
    """
    Return the locations where checkpoints may reference files: the configured directories and ``allowed_locations``.

    :raises InvalidConfigurationError: if an option is not a URI.
    """
    section = _flink_section()
    checkpoint_dir = _configured("checkpoint_dir", section)
    base = normalise_base(checkpoint_dir) if checkpoint_dir else None
    locations = _value("allowed_locations", None, parse_locations, section)
    return AllowedLocations().around(base, configured_savepoint_dir()).below(*locations)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateServingSettings:
    """Settings of a server of queryable state."""

    serve_state: bool = True
    """Whether the api-server serves state."""
    state_requests_per_second: float = 0.0
    """Maximum rate of the requests of a caller; 0 for any rate."""

    @classmethod
    def read(cls) -> Self:
        """
        Read the settings from the section.

        :raises InvalidConfigurationError: if an option has another type or is out of range.
        """
        section = _flink_section()
        rate = _value("state_requests_per_second", None, _number, section)
        require("state_requests_per_second", rate, lambda r: 0 <= r <= _MAX_RATE, "0 for any rate, or more")
        return cls(serve_state=_value("serve_state", None, parse_boolean, section), state_requests_per_second=rate)


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for key in arguments:
        if key not in _PARSERS:
            raise InvalidConfigurationError(
                f"Expected settings named {', '.join(_PARSERS)}, found {key!r}; correct its name.", key=key
            )


def _value(key: str, argument: Any, parse: Callable[[Any], Any], section: Mapping[str, str]) -> Any:
    raw = argument if argument is not None else _configured(key, section)
    if (raw is None or raw == "") and key in _ABSENT:
        return _ABSENT[key]
    if raw is None or raw == "":
        raise InvalidConfigurationError(
            f"Expected {key} as an argument or in the section [{SECTION}] of Airflow's configuration, found neither; set "
            f"AIRFLOW__STATECHECK__{key.upper()}.",
            key=key,
        )
    try:
        return parse(raw)
    except InvalidConfigurationError:
        raise
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected {key} to be {_EXPECTED.get(key, 'text')}, found {raw!r}.", key=key, value=raw
        ) from error


def _configured(key: str, section: Mapping[str, str]) -> Any:
    from airflow.sdk.configuration import conf

    counterpart = None if _is_set(key) else _flink_value(key, section)
    return conf.get(SECTION, key, fallback=None) if counterpart is None else counterpart


def _is_set(key: str) -> bool:
    from airflow.sdk.configuration import conf

    # conf.get() does not distinguish a declared default from a value that a user set.
    variable = f"AIRFLOW__{SECTION}__{key}".upper()
    is_in_environment = any(variable + suffix in os.environ for suffix in ("", "_CMD", "_SECRET"))
    return is_in_environment or any(ConfigParser.has_option(conf, SECTION, key + s) for s in ("", "_cmd", "_secret"))


def _flink_section() -> dict[str, str]:
    from airflow.sdk.configuration import conf

    if not ConfigParser.has_section(conf, SECTION):
        return {}
    keys = (key for key in ConfigParser.options(conf, SECTION) if "." in key)
    return {key: conf.get(SECTION, key, fallback="") or "" for key in keys}


def _check(values: dict[str, Any]) -> None:
    require("num_retained", values["num_retained"], lambda n: n >= 1, "at least 1")
    require("retained_runs", values["retained_runs"], lambda n: n >= 0, "0 or more")
    seconds = values["checkpoint_timeout_seconds"]
    require(
        "checkpoint_timeout_seconds",
        seconds,
        lambda s: 0.01 <= s <= _MAX_TIMEOUT_SECONDS,
        "from 0.01 seconds to a year",
    )
    tolerable = values["tolerable_failed_checkpoints"]
    require("tolerable_failed_checkpoints", tolerable, lambda n: n >= -1, "-1 for any number, or 0 and more")
    budget = values["overhead_budget"]
    require("overhead_budget", budget, lambda b: b is None or 0 < b <= 1, "above 0 and up to 1")


def _whole_number(value: Any) -> int:
    return int(str(value))  # int() without str() accepts 2.7 as 2 and True as 1


def _number(value: Any) -> float:
    return float(str(value))


def parse_boolean(value: Any) -> bool:
    """
    Parse a boolean of Airflow's configuration, such as ``true``, ``off`` or ``1``.

    :raises ValueError: if the value is none.
    """
    text = str(value).strip().lower()
    if text not in ConfigParser.BOOLEAN_STATES:
        raise ValueError(text)
    return ConfigParser.BOOLEAN_STATES[text]


def _on_clear(value: Any) -> OnClear:
    return OnClear(str(value))


def _on_overlap(value: Any) -> OnOverlap:
    return OnOverlap(str(value))


def _checked_by(option: ConfigOption[Any], key: str) -> Callable[[Any], Any]:
    return lambda value: option.checked(key, value)


def _savepoint_dir(value: Any) -> str:
    return normalise_pointer(CheckpointConfig.savepoint_dir.checked("savepoint_dir", value))


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "checkpoint_dir": str,
    "storage_conn_id": str,
    "num_retained": _whole_number,
    "retained_runs": _whole_number,
    "checkpoint_timeout_seconds": _number,
    "tolerable_failed_checkpoints": _whole_number,
    "overhead_budget": _number,
    "checkpoint_interval": partial(parse_interval, "checkpoint_interval"),
    "min_pause": _checked_by(CheckpointConfig.min_pause_between_checkpoints, "min_pause"),
    "externalized_checkpoint_retention": _checked_by(
        CheckpointConfig.externalized_checkpoint_retention, "externalized_checkpoint_retention"
    ),
    "savepoint_dir": _savepoint_dir,
    "data_inline_threshold": _checked_by(CheckpointConfig.data_inline_threshold, "data_inline_threshold"),
    "allowed_locations": parse_locations,
    "on_clear": _on_clear,
    "on_overlap": _on_overlap,
}
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("storage_conn_id", "overhead_budget", "checkpoint_interval", "savepoint_dir")),
    "allowed_locations": (),
}
"""Values of options that are not set."""
_EXPECTED = {
    "serve_state": "true or false",
    "state_requests_per_second": "a number",
    "num_retained": "a whole number",
    "retained_runs": "a whole number",
    "checkpoint_timeout_seconds": "a number of seconds",
    "tolerable_failed_checkpoints": "a whole number",
    "overhead_budget": "a number above 0 and up to 1",
    "on_clear": f"one of {', '.join(OnClear)}",
    "on_overlap": f"one of {', '.join(OnOverlap)}",
}


@dataclass(frozen=True, slots=True)
class FlinkCounterpart:
    """Flink's option for an option of ``[statecheck]``."""

    option: ConfigOption[Any]
    convert: Callable[[Any], Any] = lambda value: value
    """Convert the value of Flink's option into a value of the option of ``[statecheck]``."""


FLINK_COUNTERPARTS = {
    "checkpoint_dir": FlinkCounterpart(CheckpointConfig.checkpoint_dir),
    "num_retained": FlinkCounterpart(CheckpointConfig.num_retained),
    "checkpoint_timeout_seconds": FlinkCounterpart(CheckpointConfig.timeout, timedelta.total_seconds),
    "tolerable_failed_checkpoints": FlinkCounterpart(CheckpointConfig.tolerable_failed_checkpoints),
    "checkpoint_interval": FlinkCounterpart(CheckpointConfig.checkpoint_interval),
    "min_pause": FlinkCounterpart(CheckpointConfig.min_pause_between_checkpoints),
    "externalized_checkpoint_retention": FlinkCounterpart(CheckpointConfig.externalized_checkpoint_retention),
    "savepoint_dir": FlinkCounterpart(CheckpointConfig.savepoint_dir),
    "data_inline_threshold": FlinkCounterpart(CheckpointConfig.data_inline_threshold),
}


def _flink_value(name: str, section: Mapping[str, str]) -> Any:
    counterpart = FLINK_COUNTERPARTS.get(name)
    key = counterpart.option.key_in(section) if counterpart else None
    if counterpart is None or key is None:
        return None
    log.warning("Read %s from Flink's key %s; set %s instead; its unit may differ.", name, key, name)
    config = CheckpointConfig()
    counterpart.option.read(config, section)
    return counterpart.convert(getattr(config, counterpart.option.name))


def state_backend_settings(section: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the state backend in a section, with Flink's keys."""
    checkpoint_keys = {key for option in CheckpointConfig.options() for key in (option.key, *option.old_keys)}
    return {key: section[key] for key in section if _is_backend_key(key) and key not in checkpoint_keys}


def storage_settings(section: Mapping[str, str]) -> dict[str, str]:
    """
    Return the settings of the checkpoint storage in a section, with Flink's current keys.

    :raises InvalidConfigurationError: if a setting is out of range.
    """
    config = CheckpointConfig()
    for option in STORAGE_OPTIONS:
        option.read(config, section)
    found = ((option, option.key_in(section)) for option in STORAGE_OPTIONS)
    return {option.key: section[key] for option, key in found if key is not None}


def reject_unused_keys(section: Mapping[str, str]) -> None:
    """
    Reject keys of Flink that have no effect on a stage.

    :param section: Entries of the section whose keys contain a dot.
    :raises InvalidConfigurationError: if there is such a key.
    """
    acting = (*(each.option for each in FLINK_COUNTERPARTS.values()), *STORAGE_OPTIONS)
    used = {key for option in acting for key in (option.key, *option.old_keys)}
    known = {key for option in CheckpointConfig.options() for key in (option.key, *option.old_keys)}
    for key in sorted(section.keys() - used - state_backend_settings(section).keys()):
        (nearest, *_) = difflib.get_close_matches(key, sorted(used), n=1, cutoff=0.0)
        why = "which has no effect on a stage" if key in known else f"an unknown key (did you mean {nearest}?)"
        raise InvalidConfigurationError(
            f"Expected keys that have an effect in the section [{SECTION}], found {key}, {why}; remove it.",
            key=key,
            value=section[key],
        )


def _is_backend_key(key: str) -> bool:
    return key == _BACKEND or key.startswith(f"{_BACKEND}.")
