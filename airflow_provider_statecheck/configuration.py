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
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.config import (
    FIXED_OPTIONS,
    STORAGE_OPTIONS,
    CheckpointConfig,
    ExternalizedCheckpointCleanup,
    parse_interval,
    require_default,
)
from airflow_provider_statecheck.checkpoint.config_options import (
    NOT_NEGATIVE,
    ConfigOption,
    Range,
    one_of,
    parse_directory,
    parse_number,
    parse_truth,
    parse_whole_number,
)
from airflow_provider_statecheck.checkpoint.ids import is_given, require_not_missing
from airflow_provider_statecheck.checkpoint.messages import LONGEST_CHECKPOINT
from airflow_provider_statecheck.checkpoint.records import OnClear, OnOverlap
from airflow_provider_statecheck.checkpoint.secrets import require_no_credentials
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.locations import AllowedLocations, parse_locations
from airflow_provider_statecheck.storage.uris import is_filesystem_known, normalise_base, normalise_savepoint_dir

log = logging.getLogger(__name__)

SECTION = "statecheck"
_BACKEND = "state.backend"
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
        values = {key: _value(key, arguments.get(key), section) for key in cls.names()}
        return cls(**values, state_config=state_backend_settings(section) | storage_settings(section))

    @classmethod
    def names(cls) -> list[str]:
        """Return the settings that an operator has as arguments."""
        return [field.name for field in fields(cls) if field.name in _OPTIONS]


def configured_savepoint_dir() -> str | None:
    """
    Return the configured default directory for savepoints.

    :raises InvalidConfigurationError: if the option is not the URI of a directory.
    """
    directory: str | None = _value("savepoint_dir", None, _flink_section())
    return directory


def configured_locations() -> AllowedLocations:
    """
    Return the locations where checkpoints may reference files: the configured directories and ``allowed_locations``.

    :raises InvalidConfigurationError: if an option is not a URI.
    """
    base, locations = _configured_base_and_locations()
    return AllowedLocations().around(base, configured_savepoint_dir()).below(*locations)


def guarded_locations(*given: str) -> AllowedLocations:
    """
    Return the only locations that servers and maintenance open: the configured directories and ``allowed_locations``.

    :param given: Directories or pointers of the user who runs a command.
    :raises InvalidConfigurationError: if an option is not a URI.
    """
    base, locations = _configured_base_and_locations()
    directories = (each for each in (base, configured_savepoint_dir()) if each is not None)
    return AllowedLocations.only((*directories, *locations), around=given)


def _configured_base_and_locations() -> tuple[str | None, tuple[str, ...]]:
    section = _flink_section()
    checkpoint_dir = _configured("checkpoint_dir", section)
    return normalise_base(checkpoint_dir) if checkpoint_dir else None, _value("allowed_locations", None, section)


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
        return cls(**{field.name: _value(field.name, None, section) for field in fields(cls)})


def reads_other_jobs() -> bool:
    """
    Return whether tasks may read jobs on which their Dags do not work.

    :raises InvalidConfigurationError: if the option is not a truth value.
    """
    allowed: bool = _value("read_other_jobs", None, _flink_section())
    return allowed


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for key in arguments:
        if key not in StatecheckSettings.names():
            raise InvalidConfigurationError(
                f"Expected settings named {', '.join(StatecheckSettings.names())}, found {key!r}; correct its name.",
                key=key,
            )


def _value(key: str, argument: Any, section: Mapping[str, str]) -> Any:
    require_not_missing(key, argument)
    raw = argument if is_given(argument) else _configured(key, section)
    if is_given(raw):
        return _OPTIONS[key].checked(key, raw)
    if key == _REQUIRED:
        raise InvalidConfigurationError(
            f"Expected {key} as an argument or in the section [{SECTION}] of Airflow's configuration, found neither; set "
            f"AIRFLOW__STATECHECK__{key.upper()}.",
            key=key,
        )
    return _OPTIONS[key].default


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


def _parse_checkpoint_dir(key: str, value: Any) -> str:
    require_no_credentials(key, str(value))
    return str(value)


def _parse_savepoint_dir(key: str, value: Any) -> str:
    directory = normalise_savepoint_dir(parse_directory(key, value))
    if not is_filesystem_known(directory):
        raise InvalidConfigurationError(
            f"Expected {key} with a scheme of an fsspec filesystem, found {value!r}; correct it.", key=key, value=value
        )
    return directory


_OWN_OPTIONS: tuple[ConfigOption[Any], ...] = (
    ConfigOption("checkpoint_dir", "", _parse_checkpoint_dir),
    ConfigOption("storage_conn_id", None, lambda _, value: str(value)),
    ConfigOption("retained_runs", 1, parse_whole_number, NOT_NEGATIVE),
    ConfigOption(
        "checkpoint_timeout_seconds",
        600.0,
        parse_number,
        # float() accepts infinity, but a database cannot add it to a time.
        Range(lambda seconds: 0.01 <= seconds <= LONGEST_CHECKPOINT.total_seconds(), "from 0.01 seconds to a year"),
    ),
    ConfigOption(
        "tolerable_failed_checkpoints",
        -1,
        parse_whole_number,
        Range(lambda n: n >= -1, "-1 for any number, or 0 and more"),
    ),
    ConfigOption("overhead_budget", None, parse_number, Range(lambda b: 0 < b <= 1, "above 0 and up to 1")),
    ConfigOption("checkpoint_interval", None, parse_interval),
    ConfigOption("savepoint_dir", None, _parse_savepoint_dir),
    ConfigOption("allowed_locations", (), lambda _, value: parse_locations(value)),
    ConfigOption("on_clear", OnClear.RESUME_UNCHANGED, one_of(OnClear, str)),
    ConfigOption("on_overlap", OnOverlap.FAIL, one_of(OnOverlap, str)),
    ConfigOption("serve_state", True, parse_truth),
    ConfigOption("read_other_jobs", True, parse_truth),
    ConfigOption(
        "state_requests_per_second",
        0.0,
        parse_number,
        Range(lambda rate: 0 <= rate <= _MAX_RATE, "0 for any rate, or more"),
    ),
)
_OPTIONS: dict[str, ConfigOption[Any]] = {name: each.option for name, each in FLINK_COUNTERPARTS.items()}
_OPTIONS |= {option.key: option for option in _OWN_OPTIONS}
"""Options by name. An option that Flink gives in other units, or with other values, is one of our own."""
_REQUIRED = "checkpoint_dir"


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
    checkpoint_keys = CheckpointConfig.keys()
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
    Reject keys of Flink that have no effect on a stage, unless they state what each stage does.

    :param section: Entries of the section whose keys contain a dot.
    :raises InvalidConfigurationError: if there is such a key.
    """
    for option in FIXED_OPTIONS:
        for key in section.keys() & set(option.keys):
            require_default(option, key, section[key], "a stage")
    acting = (*(each.option for each in FLINK_COUNTERPARTS.values()), *STORAGE_OPTIONS, *FIXED_OPTIONS)
    used, known = {key for option in acting for key in option.keys}, CheckpointConfig.keys()
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
