"""
Values of settings: parsers, ranges, and what a driver gets from its Airflow operator or script.

:mod:`airflow_provider_statecheck.settings` describes the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict

from airflow_provider_statecheck.checkpoint.config import STORAGE_KEYS, CheckpointConfig, parse_interval
from airflow_provider_statecheck.checkpoint.config_options import (
    ANY,
    NOT_NEGATIVE,
    ConfigOption,
    Range,
    one_of,
    parse_directory,
    parse_number,
    parse_truth,
    parse_whole_number,
)
from airflow_provider_statecheck.checkpoint.masking import require_no_credentials
from airflow_provider_statecheck.checkpoint.messages import LONGEST_CHECKPOINT
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import OnClear, OnOverlap
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.settings import SETTINGS, Kind, Setting
from airflow_provider_statecheck.storage.locations import parse_locations
from airflow_provider_statecheck.storage.uris import is_filesystem_known, normalise_savepoint_dir

_MAX_RATE = 1e6
_MILLISECOND = timedelta(milliseconds=1)


def flink_option(setting: Setting) -> ConfigOption[Any] | None:
    """Return Flink's option that is another name of a setting; ``None`` if there is none."""
    option: ConfigOption[Any] | None = None if setting.flink is None else getattr(CheckpointConfig, setting.flink)
    return option


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


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "checkpoint_dir": _parse_checkpoint_dir,
    "savepoint_dir": _parse_savepoint_dir,
    "checkpoint_interval": parse_interval,
    "on_clear": one_of(OnClear, str),
    "on_overlap": one_of(OnOverlap, str),
    "claim_mode": one_of(RestoreMode, str),
}
"""Parsers of settings that differ from those of their kind, and from Flink's."""
_PARSERS_OF_KINDS: dict[Kind, Callable[[str, Any], Any]] = {
    Kind.TEXT: lambda _, value: str(value),
    Kind.NAMES: lambda _, value: frozenset(name.strip() for name in str(value).split(",") if name.strip()),
    Kind.LOCATIONS: lambda _, value: parse_locations(value),
    Kind.INTEGER: parse_whole_number,
    Kind.NUMBER: parse_number,
    Kind.SECONDS: parse_number,
    Kind.TRUTH: parse_truth,
}
_RANGES = {
    "retained_runs": NOT_NEGATIVE,
    # float() accepts infinity, but a database cannot add it to a time.
    "checkpoint_timeout_seconds": Range(
        lambda seconds: 0.01 <= seconds <= LONGEST_CHECKPOINT.total_seconds(), "from 0.01 seconds to a year"
    ),
    "tolerable_failed_checkpoints": Range(lambda n: n >= -1, "-1 for any number, or 0 and more"),
    "overhead_budget": Range(lambda budget: 0 < budget <= 1, "above 0 and up to 1"),
    "state_requests_per_second": Range(lambda rate: 0 <= rate <= _MAX_RATE, "0 for any rate, or more"),
}


def _option(setting: Setting) -> ConfigOption[Any] | None:
    own, flink = _PARSERS.get(setting.name), flink_option(setting)
    is_flinks = own is None and setting.name not in _RANGES and flink is not None
    parse = flink.checked if is_flinks and flink else own or _PARSERS_OF_KINDS.get(setting.kind)
    if parse is None:
        return None
    given = setting.default
    default = (() if setting.kind is Kind.LOCATIONS else None) if given is None else parse(setting.name, given)
    return ConfigOption(setting.name, default, parse, _RANGES.get(setting.name, ANY))


OPTIONS = {setting.name: option for setting in SETTINGS.values() if (option := _option(setting)) is not None}
"""Parser, range and parsed default of each setting, apart from mappings, by name."""


def values_of_script(given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the settings of a script, parsed.

    :param given: Arguments by name; ``None`` means not given, except for a choice.
    :raises InvalidConfigurationError: if a value is invalid or out of range.
    """
    return {name: _value_of_script(name, value) for name, value in given.items()}


def _value_of_script(name: str, value: Any) -> Any:
    setting = SETTINGS[name]
    if setting.kind in (Kind.TEXT, Kind.MAPPING):
        return value
    if value is None and setting.kind is not Kind.CHOICE:
        return OPTIONS[name].default
    # A script has a working directory, an Airflow operator has not.
    return OPTIONS[name].checked(name, normalise_savepoint_dir(value) if name == "savepoint_dir" else value)


def require_savepoint_dir(is_wanted: bool, directory: str | None) -> None:
    """
    Require a directory for a savepoint at the end.

    :raises InvalidConfigurationError: if the savepoint is wanted, and there is none.
    """
    if is_wanted and directory is None:
        raise InvalidConfigurationError(
            "Expected a directory for the savepoint at the end, found none; set savepoint_dir, in a Dag also as "
            "[statecheck] savepoint_dir."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """Settings of a stage in a script, which a Dag takes from its run, its configuration and its connection."""

    logical_date: datetime | None = None
    """Time for the expiry of state; by default the date in the name of the run, else the registration time of its first
    attempt."""
    state_config: Mapping[str, str] = field(default_factory=dict)
    """Default state backend and options of the checkpoint storage, by Flink's keys such as ``state.backend``."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Default options of the filesystems of source and sink, which may contain credentials."""
    combines: bool | None = None
    """Whether Spark combines aggregates before the shuffle; ``None`` decides by the number of keys per row."""


class PacingArguments(TypedDict):
    """Settings of a :class:`~airflow_provider_statecheck.spark.context.StageContext`."""

    overhead_budget: float | None
    checkpoint_interval: str | None
    min_pause: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings(StageSettings):
    """
    Settings that act in a driver.

    The Airflow operator hands them over, so their values are those of JSON.
    """

    tolerable_failed_checkpoints: int = -1
    overhead_budget: float | None = None
    checkpoint_interval: str | None = None
    min_pause_ms: int = 0
    """``min_pause`` in milliseconds, under the name that drivers of earlier versions read."""
    data_inline_threshold: int = 20 * 1024
    savepoint_dir: str | None = None
    allowed_locations: tuple[str, ...] = ()
    renamed_uids: Mapping[str, str] = field(default_factory=dict)
    allow_non_restored_state: bool = False
    parallelism: int | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], settings: StageSettings) -> Self:
        """
        Return the settings of a driver.

        :param values: Parsed settings by name; those that do not act in a driver are left out.
        """
        own = {each.name: getattr(settings, each.name) for each in fields(StageSettings)}
        names = {each.name for each in fields(cls)} - own.keys()
        given = {name: _plain(values[name]) for name in names & values.keys()}
        if "min_pause" in values:
            given["min_pause_ms"] = values["min_pause"] // _MILLISECOND
        return cls(**own, **given)

    @property
    def storage_config(self) -> CheckpointConfig:
        """The settings of the checkpoint storage."""
        given = self.state_config
        config = CheckpointConfig.from_mapping({key: given[key] for key in given if key in STORAGE_KEYS})
        config.data_inline_threshold = self.data_inline_threshold
        return config

    @property
    def pacing(self) -> PacingArguments:
        """The settings of a context of steps."""
        return PacingArguments(
            overhead_budget=self.overhead_budget,
            checkpoint_interval=self.checkpoint_interval,
            min_pause=self.min_pause_ms,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return str(value // _MILLISECOND)
    return dict(value) if isinstance(value, Mapping) else value
