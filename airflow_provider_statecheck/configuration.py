"""The settings of a stage: an operator's arguments, else the section ``[statecheck]`` of Airflow's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.checkpoint.validation import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

SECTION = "statecheck"
_LONGEST = 366 * 24 * 3600.0  # infinity, which float() reads, is no timeout that a database can add to a time


@dataclass(frozen=True, slots=True, kw_only=True)
class StatecheckSettings:
    """Settings whose ranges were checked."""

    checkpoint_dir: str
    storage_conn_id: str | None
    num_retained: int
    checkpoint_timeout_seconds: float
    tolerable_failed_checkpoints: int
    overhead_budget: float | None
    on_clear: OnClear

    @classmethod
    def from_airflow(cls, **arguments: Any) -> Self:
        """
        Read the settings.

        :param arguments: Values that come before the configuration's; ``None`` means not given.
        :raises InvalidConfigurationError: for a missing, unknown or wrong one, naming it.
        """
        _refuse_unknown(arguments)
        values = {key: _value(key, arguments.get(key), parse) for key, parse in _PARSERS.items()}
        _check(values)
        return cls(**values)


def _whole_number(value: Any) -> int:
    return int(str(value))  # by its text, for int() alone would take 2.7 as 2 and True as 1


def _number(value: Any) -> float:
    return float(str(value))


def _on_clear(value: Any) -> OnClear:
    return OnClear(str(value))


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "checkpoint_dir": str,
    "storage_conn_id": str,
    "num_retained": _whole_number,
    "checkpoint_timeout_seconds": _number,
    "tolerable_failed_checkpoints": _whole_number,
    "overhead_budget": _number,
    "on_clear": _on_clear,
}
_OPTIONAL = frozenset({"storage_conn_id", "overhead_budget"})
_EXPECTED = {
    "num_retained": "a whole number",
    "checkpoint_timeout_seconds": "a number of seconds",
    "tolerable_failed_checkpoints": "a whole number",
    "overhead_budget": "a number above 0 and up to 1",
    "on_clear": f"one of {', '.join(OnClear)}",
}


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for key in arguments:
        if key not in _PARSERS:
            raise InvalidConfigurationError(
                f"Expected settings named {', '.join(_PARSERS)}, found {key!r}; correct its name.", key=key
            )


def _value(key: str, argument: Any, parse: Callable[[Any], Any]) -> Any:
    raw = argument if argument is not None else _configured(key)
    if (raw is None or raw == "") and key in _OPTIONAL:
        return None
    if raw is None or raw == "":
        raise InvalidConfigurationError(
            f"Expected {key} as an argument or in the section [{SECTION}] of Airflow's configuration, found neither; set "
            f"AIRFLOW__STATECHECK__{key.upper()}.",
            key=key,
        )
    try:
        return parse(raw)
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected {key} to be {_EXPECTED.get(key, 'text')}, found {raw!r}.", key=key, value=raw
        ) from error


def _configured(key: str) -> Any:
    from airflow.sdk.configuration import conf

    return conf.get(SECTION, key, fallback=None)


def _check(values: dict[str, Any]) -> None:
    require("num_retained", values["num_retained"], lambda n: n >= 1, "at least 1")
    seconds = values["checkpoint_timeout_seconds"]
    require("checkpoint_timeout_seconds", seconds, lambda s: 0.01 <= s <= _LONGEST, "from 0.01 seconds to a year")
    tolerable = values["tolerable_failed_checkpoints"]
    require("tolerable_failed_checkpoints", tolerable, lambda n: n >= -1, "-1 for any number, or 0 and more")
    budget = values["overhead_budget"]
    require("overhead_budget", budget, lambda b: b is None or 0 < b <= 1, "above 0 and up to 1")
