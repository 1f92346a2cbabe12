"""Configuration of checkpoints: Flink's ``CheckpointConfig``."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.config_options import (
    NOT_NEGATIVE,
    POSITIVE,
    ConfigOption,
    Range,
    one_of,
    parse_directory,
    parse_duration,
    parse_number,
    parse_size,
    parse_storage,
    parse_text,
    parse_truth,
    parse_whole_number,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointRetentionPolicy, RestoreMode
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

log = logging.getLogger(__name__)

_CHECKPOINTING = "execution.checkpointing"
_MERGING = f"{_CHECKPOINTING}.file-merging"
_OLD_MERGING = "state.checkpoints.file-merging"
_RECOVERY = "execution.state-recovery"
_PREFIXES = (f"{_CHECKPOINTING}.", f"{_RECOVERY}.", "state.checkpoints.", "state.savepoints.", "execution.savepoint.")
_SHORTEST = timedelta(milliseconds=10)
_LONG_ENOUGH = Range(lambda d: d >= _SHORTEST, "at least 10 ms")
_NO_NEGATIVE_TIME = Range(lambda d: d >= timedelta(0), "0 or more")
_ABOVE_0 = Range(lambda n: n > 0, "above 0")
_LONGEST_PAUSE = timedelta(days=365)
_KIB = 1024
_MIB = 1024 * _KIB


class CheckpointingMode(StrEnum):
    """Guarantee for the effects of each record on state after a failure."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class ExternalizedCheckpointCleanup(StrEnum):
    """Deletion of checkpoints after the end of a job, with the values of the configuration."""

    DELETE_ON_CANCELLATION = "delete_on_cancellation"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"
    NO_EXTERNALIZED_CHECKPOINTS = "no_externalized_checkpoints"

    @property
    def retention_policy(self) -> CheckpointRetentionPolicy:
        """The retention policy for the properties of a checkpoint."""
        return _POLICIES[self]


_POLICIES = {
    ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION: CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
    ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION: CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
    ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS: CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
}


class CheckpointConfig:
    """
    Checkpoint settings of a job, which are validated on assignment. ``None`` resets a setting to its default.

    :raises InvalidConfigurationError: if a value out of range is assigned.
    """

    checkpoint_storage = ConfigOption[Any](
        f"{_CHECKPOINTING}.storage", None, parse_storage, old_keys=("state.checkpoint-storage",)
    )
    """Checkpoint storage: its name, an object, or the URI of its directory; ``None`` for ``filesystem``."""
    checkpoint_dir = ConfigOption[str | None](
        f"{_CHECKPOINTING}.dir", None, parse_directory, old_keys=("state.checkpoints.dir",)
    )
    savepoint_dir = ConfigOption[str | None](
        f"{_CHECKPOINTING}.savepoint-dir", None, parse_directory, old_keys=("state.savepoints.dir",)
    )
    checkpoint_interval = ConfigOption[timedelta | None](
        f"{_CHECKPOINTING}.interval", None, parse_duration, _LONG_ENOUGH
    )
    """Interval of periodic checkpoints; ``None`` disables them."""
    mode = ConfigOption(f"{_CHECKPOINTING}.mode", CheckpointingMode.EXACTLY_ONCE, one_of(CheckpointingMode))
    timeout = ConfigOption(f"{_CHECKPOINTING}.timeout", timedelta(minutes=10), parse_duration, _LONG_ENOUGH)
    min_pause_between_checkpoints = ConfigOption(
        f"{_CHECKPOINTING}.min-pause", timedelta(0), parse_duration, _NO_NEGATIVE_TIME
    )
    max_concurrent_checkpoints = ConfigOption(
        f"{_CHECKPOINTING}.max-concurrent-checkpoints", 1, parse_whole_number, POSITIVE
    )
    tolerable_failed_checkpoints = ConfigOption[int | None](
        f"{_CHECKPOINTING}.tolerable-failed-checkpoints", None, parse_whole_number, NOT_NEGATIVE
    )
    """Maximum number of consecutive failed checkpoints; ``None`` for no limit."""
    externalized_checkpoint_retention = ConfigOption(
        f"{_CHECKPOINTING}.externalized-checkpoint-retention",
        ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION,
        one_of(ExternalizedCheckpointCleanup),
    )
    num_retained = ConfigOption(
        f"{_CHECKPOINTING}.num-retained",
        2,
        parse_whole_number,
        POSITIVE,
        old_keys=("state.checkpoints.num-retained",),
        is_lenient=True,
    )
    incremental = ConfigOption(
        f"{_CHECKPOINTING}.incremental", True, parse_truth, old_keys=("state.backend.incremental",)
    )
    """
    Whether a checkpoint of the ``arrow`` backend references state files of earlier ones instead of writing all state.
    """
    data_inline_threshold = ConfigOption(
        f"{_CHECKPOINTING}.data-inline-threshold",
        20 * _KIB,
        parse_size,
        Range(lambda n: 0 <= n <= _MIB, "from 0 to 1 MiB"),
        old_keys=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
        is_lenient=True,
    )
    """Maximum size in bytes of state that is stored inline in the metadata."""
    write_buffer_size = ConfigOption(
        f"{_CHECKPOINTING}.write-buffer-size",
        4 * _KIB,
        parse_size,
        _ABOVE_0,
        old_keys=("state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
    )
    """Size of state that is buffered in memory; the rest is buffered in local files. At least the inline threshold."""
    checkpoints_after_tasks_finish = ConfigOption(
        f"{_CHECKPOINTING}.checkpoints-after-tasks-finish",
        True,
        parse_truth,
        old_keys=(f"{_CHECKPOINTING}.checkpoints-after-tasks-finish.enabled",),
    )
    cleaner_parallel_mode = ConfigOption(
        f"{_CHECKPOINTING}.cleaner.parallel-mode",
        True,
        parse_truth,
        old_keys=("state.checkpoint.cleaner.parallel-mode",),
    )
    create_subdir = ConfigOption(
        f"{_CHECKPOINTING}.create-subdir", True, parse_truth, old_keys=("state.checkpoints.create-subdir",)
    )
    file_merging_enabled = ConfigOption(f"{_MERGING}.enabled", True, parse_truth, old_keys=(f"{_OLD_MERGING}.enabled",))
    """Whether the state that a task writes for a checkpoint is merged into one file for each directory."""
    file_merging_max_file_size = ConfigOption(
        f"{_MERGING}.max-file-size", 32 * _MIB, parse_size, _ABOVE_0, old_keys=(f"{_OLD_MERGING}.max-file-size",)
    )
    """Size at which a file accepts no more state. State of this size has a file of its own."""
    file_merging_max_space_amplification = ConfigOption(
        f"{_MERGING}.max-space-amplification",
        2.0,
        parse_number,
        Range(lambda x: x > 1, "above 1"),
        old_keys=(f"{_OLD_MERGING}.max-space-amplification",),
    )
    """Maximum number of stored bytes for each referenced byte of a subtask; ``inf`` for no limit."""
    recovery_path = ConfigOption[str | None](
        f"{_RECOVERY}.path", None, parse_text, old_keys=("execution.savepoint.path",)
    )
    """Pointer to the checkpoint or savepoint that a fresh start restores."""
    recovery_ignore_unclaimed_state = ConfigOption(
        f"{_RECOVERY}.ignore-unclaimed-state",
        False,
        parse_truth,
        old_keys=("execution.savepoint.ignore-unclaimed-state",),
    )
    recovery_claim_mode = ConfigOption(
        f"{_RECOVERY}.claim-mode",
        RestoreMode.NO_CLAIM,
        one_of(RestoreMode),
        old_keys=("execution.savepoint-restore-mode",),
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """
        Read the settings by their current or deprecated keys, and log a warning for unknown keys with a known prefix.

        :raises InvalidConfigurationError: for a value out of range.
        """
        config = cls()
        for option in cls.options():
            option.read(config, values)
        cls.warn_of_unknown(values)
        return config

    @classmethod
    def warn_of_unknown(cls, values: Mapping[str, Any]) -> None:
        """Log a warning for each unknown key with a known prefix, with the nearest known key."""
        known = cls.keys()
        for key in values:
            if key not in known and key.startswith(_PREFIXES):
                (nearest, *_) = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
                log.warning("Unknown setting %s is ignored; did you mean %s?", key, nearest)

    @classmethod
    def options(cls) -> Iterator[ConfigOption[Any]]:
        """Return all options."""
        return (value for value in vars(CheckpointConfig).values() if isinstance(value, ConfigOption))

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Return the keys of all options, current and deprecated."""
        return frozenset(key for option in cls.options() for key in option.keys)

    def require_only(self, names: Iterable[str], consumer: str) -> None:
        """
        Raise an error if a setting was assigned that a consumer does not support.

        A setting of ``FIXED_OPTIONS`` may be assigned its default, which states what every consumer does.

        :param names: Names of the supported settings.
        :param consumer: Name of the consumer, for the error.
        :raises InvalidConfigurationError: for the first unsupported setting.
        """
        unused = self.__dict__.keys() - set(names)
        for option in self.options():
            if option.name in unused and option in FIXED_OPTIONS:
                require_default(option, option.name, getattr(self, option.name), consumer)
            elif option.name in unused:
                raise InvalidConfigurationError(
                    f"Expected only settings that {consumer} supports, found {option.name} ({option.key}); remove it.",
                    key=option.name,
                )

    def subset(self, names: Iterable[str]) -> CheckpointConfig:
        """Return a copy with the given settings only."""
        copied, wanted = CheckpointConfig(), set(names)
        copied.__dict__.update({name: value for name, value in self.__dict__.items() if name in wanted})
        return copied

    @property
    def retention_policy(self) -> CheckpointRetentionPolicy:
        """The retention of checkpoints after the end of the job."""
        return self.externalized_checkpoint_retention.retention_policy

    @property
    def storage_dir(self) -> str | None:
        """
        The directory of checkpoints, which the storage may be given as; ``None`` if neither is set.

        :raises InvalidConfigurationError: if both are set to different directories.
        """
        storage, directory = self.checkpoint_storage, self.checkpoint_dir
        if not isinstance(storage, str) or "://" not in storage:
            return directory
        if directory is not None and directory.rstrip("/") != storage.rstrip("/"):
            keys = CheckpointConfig.checkpoint_storage.key, CheckpointConfig.checkpoint_dir.key
            raise InvalidConfigurationError(
                f"Expected one directory of checkpoints, found different ones in {keys[0]} and {keys[1]}; remove one "
                "of the settings.",
                key=keys[0],
            )
        return storage

    @property
    def effective_min_pause(self) -> timedelta:
        """The pause between checkpoints, at most a year."""
        return min(self.min_pause_between_checkpoints, _LONGEST_PAUSE)

    @property
    def effective_interval(self) -> timedelta | None:
        """The interval of periodic checkpoints, at least the minimum pause."""
        interval = self.checkpoint_interval
        return None if interval is None else max(interval, self.effective_min_pause)

    @property
    def effective_max_concurrent_checkpoints(self) -> int:
        """The maximum number of checkpoints in progress, which is 1 with a minimum pause."""
        return 1 if self.effective_min_pause > timedelta(0) else self.max_concurrent_checkpoints

    def __eq__(self, other: object) -> bool:
        """Return whether all settings are equal."""
        return isinstance(other, CheckpointConfig) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Return the settings that differ from the defaults."""
        changed = ((option.name, getattr(self, option.name), option.default) for option in self.options())
        return f"CheckpointConfig({', '.join(f'{n}={value!r}' for n, value, default in changed if value != default)})"

    def _values(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in self.options()}


FIXED_OPTIONS: tuple[ConfigOption[Any], ...] = (
    CheckpointConfig.mode,
    CheckpointConfig.max_concurrent_checkpoints,
    CheckpointConfig.create_subdir,
)
"""Settings whose default states what a consumer does that does not support them."""


def require_default(option: ConfigOption[Any], key: str, value: Any, consumer: str) -> None:
    """
    Raise an error if the value of a setting is not the default, which alone a consumer supports.

    :param key: Name of the setting, for the error.
    :param consumer: Name of the consumer, for the error.
    :raises InvalidConfigurationError: if the value is another one, or invalid.
    """
    if option.checked(key, value) == option.default:
        return
    only, found = (str(getattr(each, "name", each)) for each in (option.default, value))
    raise InvalidConfigurationError(
        f"Expected {key} to be {only}, the only value that {consumer} supports, found {found}; remove the setting.",
        key=key,
        value=value,
    )


STORAGE_OPTIONS = (
    CheckpointConfig.checkpoint_storage,
    CheckpointConfig.incremental,
    CheckpointConfig.write_buffer_size,
    CheckpointConfig.file_merging_enabled,
    CheckpointConfig.file_merging_max_file_size,
    CheckpointConfig.file_merging_max_space_amplification,
)
"""Settings of the checkpoint storage and of checkpoints that act on a stage."""
STORAGE_KEYS = frozenset(key for option in STORAGE_OPTIONS for key in option.keys)
"""Keys of these settings, current and deprecated."""

AUTO = "auto"
"""Value for an interval that follows from the cost of checkpoints and the failure rate of the job."""


def parse_interval(key: str, value: Any) -> timedelta | str:
    """
    Parse an interval: a duration, or ``auto`` in upper or lower case.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: if the value is neither.
    """
    if isinstance(value, str) and value.strip().lower() == AUTO:
        return AUTO
    interval: timedelta = CheckpointConfig.checkpoint_interval.checked(key, value)  # type: ignore[assignment]
    return interval
