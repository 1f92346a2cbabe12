"""
Settings of a stage: arguments of Airflow operators, then ``[statecheck]`` of the configuration.

An argument takes precedence over the section. In the section, an option takes precedence over its counterpart in Flink,
a key with a dot such as ``state.checkpoints.dir``.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.config import (
    FIXED_OPTIONS,
    STORAGE_OPTIONS,
    CheckpointConfig,
    ExternalizedCheckpointCleanup,
    require_default,
)
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.checkpoint.ids import is_given, require_not_missing
from airflow_provider_statecheck.checkpoint.records import OnClear, OnOverlap
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.settings import SETTINGS, Kind, Place, settings_in
from airflow_provider_statecheck.spark.driver.settings import OPTIONS, flink_option
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.uris import normalise_base

log = logging.getLogger(__name__)

SECTION = "statecheck"
_BACKEND = "state.backend"


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

        :param arguments: Arguments of the Airflow operator; ``None`` means not given.
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
        return [field.name for field in fields(cls) if field.name in OPTIONS]


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


def maintenance_dags() -> frozenset[str]:
    """Return the ids of the Dags whose tasks may maintain jobs; none if the option is empty."""
    given, option = _configured("maintenance_dags", {}), OPTIONS["maintenance_dags"]
    names: frozenset[str] = option.default if given is None else option.checked(option.key, given)
    return names


def api_url() -> str | None:
    """Return the configured root URL of the api-server."""
    url: str | None = _value("api_url", None, _flink_section())
    return url


def reads_other_jobs() -> bool:
    """
    Return whether tasks may read jobs on which their Dags do not work.

    :raises InvalidConfigurationError: if the option is not a truth value.
    """
    allowed: bool = _value("read_other_jobs", None, _flink_section())
    return allowed


def migrates_on_start() -> bool:
    """
    Return whether an api-server that starts creates or upgrades the tables.

    :raises InvalidConfigurationError: if the option is not a truth value.
    """
    wanted: bool = _value("migrate_on_start", None, _flink_section())
    return wanted


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
        return OPTIONS[key].checked(key, raw)
    if key == _REQUIRED:
        raise InvalidConfigurationError(
            f"Expected {key} as an argument or in the section [{SECTION}] of Airflow's configuration, found neither; "
            f"set AIRFLOW__STATECHECK__{key.upper()}.",
            key=key,
        )
    return OPTIONS[key].default


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


FLINK_COUNTERPARTS: dict[str, ConfigOption[Any]] = {
    name: option for name, each in settings_in(Place.SECTION).items() if (option := flink_option(each)) is not None
}
"""Flink's option for each option of ``[statecheck]`` that has one."""
_REQUIRED = "checkpoint_dir"


def _flink_value(name: str, section: Mapping[str, str]) -> Any:
    option = FLINK_COUNTERPARTS.get(name)
    key = option.key_in(section) if option else None
    given = _storage_dir(section) if name == _REQUIRED else None
    if option is None or key is None:
        return given
    log.warning("Read %s from Flink's key %s; set %s instead; its unit may differ.", name, key, name)
    config = CheckpointConfig()
    option.read(config, section)
    value = getattr(config, option.name)
    return value.total_seconds() if SETTINGS[name].kind is Kind.SECONDS else value


def _storage_dir(section: Mapping[str, str]) -> str | None:
    config = CheckpointConfig()
    for option in (CheckpointConfig.checkpoint_storage, CheckpointConfig.checkpoint_dir):
        option.read(config, section)
    return config.storage_dir


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
    for option in (*STORAGE_OPTIONS, CheckpointConfig.checkpoint_dir):
        option.read(config, section)
    # A storage that is given as a directory acts as checkpoint_dir.
    acting = (
        each
        for each in STORAGE_OPTIONS
        if each is not CheckpointConfig.checkpoint_storage or config.storage_dir != config.checkpoint_storage
    )
    found = ((option, option.key_in(section)) for option in acting)
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
    acting = (*FLINK_COUNTERPARTS.values(), *STORAGE_OPTIONS, *FIXED_OPTIONS)
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
