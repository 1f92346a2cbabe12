"""The configuration of checkpoints, and its options."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config import (
    AUTO,
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    parse_interval,
)
from airflow_provider_statecheck.checkpoint.config_options import parse_duration, parse_size, readable_size
from airflow_provider_statecheck.checkpoint.messages import require_valid
from airflow_provider_statecheck.checkpoint.properties import CheckpointRetentionPolicy, RestoreMode
from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, CheckpointPage
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.messages import make_registration

C = "execution.checkpointing"
M = f"{C}.file-merging"
R = "execution.state-recovery"
MIB = 1 << 20
SECOND = timedelta(seconds=1)
ROWS: list[tuple[str, str, Any, Any, Any]] = [
    # attribute, key, default, a value of the mapping, what it means
    ("checkpoint_storage", f"{C}.storage", None, "filesystem", "filesystem"),
    ("checkpoint_dir", f"{C}.dir", None, "file:///checkpoints", "file:///checkpoints"),
    ("savepoint_dir", f"{C}.savepoint-dir", None, "s3://lake/savepoints", "s3://lake/savepoints"),
    ("checkpoint_interval", f"{C}.interval", None, "30 s", 30 * SECOND),
    ("mode", f"{C}.mode", CheckpointingMode.EXACTLY_ONCE, "AT_LEAST_ONCE", CheckpointingMode.AT_LEAST_ONCE),
    ("timeout", f"{C}.timeout", 600 * SECOND, "60000", 60 * SECOND),
    ("min_pause_between_checkpoints", f"{C}.min-pause", 0 * SECOND, 5000, 5 * SECOND),
    ("max_concurrent_checkpoints", f"{C}.max-concurrent-checkpoints", 1, "3", 3),
    ("tolerable_failed_checkpoints", f"{C}.tolerable-failed-checkpoints", None, 0, 0),
    (
        "externalized_checkpoint_retention",
        f"{C}.externalized-checkpoint-retention",
        ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION,
        "DELETE_ON_CANCELLATION",
        ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION,
    ),
    ("num_retained", f"{C}.num-retained", 2, "5", 5),
    ("incremental", f"{C}.incremental", True, "false", False),
    ("data_inline_threshold", f"{C}.data-inline-threshold", 20 * 1024, "1 MiB", MIB),
    ("write_buffer_size", f"{C}.write-buffer-size", 4096, "8192", 8192),
    ("checkpoints_after_tasks_finish", f"{C}.checkpoints-after-tasks-finish", True, False, False),
    ("cleaner_parallel_mode", f"{C}.cleaner.parallel-mode", True, "False", False),
    ("create_subdir", f"{C}.create-subdir", True, "false", False),
    ("file_merging_enabled", f"{M}.enabled", True, "false", False),
    ("file_merging_max_file_size", f"{M}.max-file-size", 32 * MIB, "64 MiB", 64 * MIB),
    ("file_merging_max_space_amplification", f"{M}.max-space-amplification", 2.0, "1.5", 1.5),
    ("recovery_path", f"{R}.path", None, "file:///savepoints/1", "file:///savepoints/1"),
    ("recovery_ignore_unclaimed_state", f"{R}.ignore-unclaimed-state", False, "true", True),
    ("recovery_claim_mode", f"{R}.claim-mode", RestoreMode.NO_CLAIM, "CLAIM", RestoreMode.CLAIM),
]
OLD = [
    ("checkpoint_dir", "state.checkpoints.dir", "file:///checkpoints"),
    ("savepoint_dir", "state.savepoints.dir", "file:///savepoints"),
    ("checkpoint_storage", "state.checkpoint-storage", "filesystem"),
    ("num_retained", "state.checkpoints.num-retained", 9),
    ("incremental", "state.backend.incremental", False),
    ("data_inline_threshold", "state.storage.fs.memory-threshold", 1),
    ("data_inline_threshold", "state.backend.fs.memory-threshold", 1),
    ("write_buffer_size", "state.backend.fs.write-buffer-size", 1),
    ("create_subdir", "state.checkpoints.create-subdir", False),
    ("cleaner_parallel_mode", "state.checkpoint.cleaner.parallel-mode", False),
    ("file_merging_enabled", "state.checkpoints.file-merging.enabled", False),
    ("recovery_path", "execution.savepoint.path", "file:///savepoints/1"),
    ("recovery_claim_mode", "execution.savepoint-restore-mode", "claim"),
]
WRONG = [
    ("checkpoint_interval", f"{C}.interval", 9, "at least 10 ms"),
    ("timeout", f"{C}.timeout", "9 ms", "at least 10 ms"),
    ("timeout", f"{C}.timeout", "soon", "milliseconds, or a number with a unit"),
    ("min_pause_between_checkpoints", f"{C}.min-pause", -1, "0 or more"),
    ("max_concurrent_checkpoints", f"{C}.max-concurrent-checkpoints", 0, "at least 1"),
    ("max_concurrent_checkpoints", f"{C}.max-concurrent-checkpoints", 1.5, "a whole number"),
    ("tolerable_failed_checkpoints", f"{C}.tolerable-failed-checkpoints", -1, "0 or more"),
    ("mode", f"{C}.mode", "TWICE", "one of EXACTLY_ONCE, AT_LEAST_ONCE"),
    ("externalized_checkpoint_retention", f"{C}.externalized-checkpoint-retention", "ALWAYS", "one of DELETE_ON_"),
    ("incremental", f"{C}.incremental", "maybe", "true or false"),
    ("write_buffer_size", f"{C}.write-buffer-size", 0, "above 0"),
    ("file_merging_max_file_size", f"{M}.max-file-size", 0, "above 0"),
    ("file_merging_max_space_amplification", f"{M}.max-space-amplification", 1, "above 1"),
    ("file_merging_max_space_amplification", f"{M}.max-space-amplification", "nan", "above 1"),
    ("file_merging_max_space_amplification", f"{M}.max-space-amplification", "much", "a number"),
    ("recovery_claim_mode", f"{R}.claim-mode", "LEGACY", "one of NO_CLAIM, CLAIM"),
    ("checkpoint_storage", f"{C}.storage", 3, "text"),
    ("checkpoint_dir", f"{C}.dir", "/data", "URI of a directory"),
    ("checkpoint_dir", f"{C}.dir", "file:///", "URI of a directory"),
    ("checkpoint_dir", f"{C}.dir", "s3://lake", "URI of a directory"),
    ("savepoint_dir", f"{C}.savepoint-dir", "hdfs://host", "URI of a directory"),
    ("savepoint_dir", f"{C}.savepoint-dir", "file://[", "URI of a directory"),
]


def test_each_setting_has_a_row_in_these_tests() -> None:
    assert [option.name for option in CheckpointConfig.options()] == [row[0] for row in ROWS]
    assert [option.key for option in CheckpointConfig.options()] == [row[1] for row in ROWS]


@pytest.mark.parametrize(("name", "key", "default", "given", "value"), ROWS)
def test_object_and_mapping_give_equal_results(name: str, key: str, default: Any, given: Any, value: Any) -> None:
    assert getattr(CheckpointConfig(), name) == default
    config = CheckpointConfig()
    setattr(config, name, given)
    read = CheckpointConfig.from_mapping({key: given})
    assert getattr(config, name) == getattr(read, name) == value
    assert config == read != CheckpointConfig()


@pytest.mark.parametrize(("name", "key", "value", "expected"), WRONG)
def test_a_value_out_of_range_is_refused_with_its_name_itself_and_the_range(
    name: str, key: str, value: Any, expected: str
) -> None:
    config = CheckpointConfig()
    with pytest.raises(InvalidConfigurationError) as by_code:
        setattr(config, name, value)
    with pytest.raises(InvalidConfigurationError) as by_mapping:
        CheckpointConfig.from_mapping({key: value})
    for refused, said in ((by_code, name), (by_mapping, key)):
        assert str(refused.value).startswith(f"Expected {said} to be ")
        assert expected in str(refused.value)
        assert repr(value) in str(refused.value)
        assert refused.value.key == said
    assert config == CheckpointConfig()


@pytest.mark.parametrize(("name", "key", "value"), OLD)
def test_an_old_key_is_read_with_a_warning_that_names_the_new_one(
    caplog: pytest.LogCaptureFixture, name: str, key: str, value: Any
) -> None:
    expected = CheckpointConfig()
    setattr(expected, name, value)
    assert CheckpointConfig.from_mapping({key: value}) == expected != CheckpointConfig()
    assert caplog.messages == [f"Setting {key} is deprecated; use {getattr(CheckpointConfig, name).key}."]


def test_the_new_key_comes_before_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    values = {"state.checkpoints.dir": "file:///old", f"{C}.dir": "file:///new"}
    assert CheckpointConfig.from_mapping(values).checkpoint_dir == "file:///new"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("key", "value", "name", "default"),
    [
        (f"{C}.num-retained", 0, "num_retained", 2),
        (f"{C}.data-inline-threshold", MIB + 1, "data_inline_threshold", 20 * 1024),
        (f"{C}.data-inline-threshold", "-1", "data_inline_threshold", 20 * 1024),
    ],
)
def test_two_settings_out_of_range_fall_back_with_a_warning_in_a_mapping_and_are_refused_in_code(
    caplog: pytest.LogCaptureFixture, key: str, value: Any, name: str, default: int
) -> None:
    assert getattr(CheckpointConfig.from_mapping({key: value}), name) == default
    (message,) = caplog.messages
    assert key in message
    assert f"Using the default {default}." in message
    with pytest.raises(InvalidConfigurationError, match=name):
        setattr(CheckpointConfig(), name, value)


def test_a_misspelt_value_is_refused_even_where_one_out_of_range_falls_back() -> None:
    with pytest.raises(InvalidConfigurationError, match="a whole number, found 'many'"):
        CheckpointConfig.from_mapping({f"{C}.num-retained": "many"})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        (f"{C}.timeuot", f"{C}.timeout"),
        (f"{R}.claimmode", f"{R}.claim-mode"),
        ("state.checkpoints.dirs", "state.checkpoints.dir"),
    ],
)
def test_an_unknown_key_of_ours_is_warned_of_with_the_nearest_one(
    caplog: pytest.LogCaptureFixture, key: str, nearest: str
) -> None:
    assert CheckpointConfig.from_mapping({key: "1"}) == CheckpointConfig()
    assert caplog.messages == [f"Unknown setting {key} is ignored; did you mean {nearest}?"]


def test_keys_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert CheckpointConfig.from_mapping({"state.backend": "arrow", "rest.port": 8081}) == CheckpointConfig()
    assert caplog.messages == []


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_value_of_a_mapping_is_not_given(nothing: Any) -> None:
    values = {f"{C}.dir": nothing, "state.checkpoints.dir": "file:///old"}
    assert CheckpointConfig.from_mapping(values).checkpoint_dir == "file:///old"


def test_none_goes_back_to_the_default() -> None:
    config = CheckpointConfig()
    config.timeout = 5000
    config.timeout = None
    assert config == CheckpointConfig()


def test_credentials_of_a_wrong_directory_are_not_shown() -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        CheckpointConfig.from_mapping({f"{C}.dir": "s3://user:secret@host?sig=hidden"})
    assert not any(part in str(refused.value) + refused.value.value for part in ("secret", "hidden"))


@pytest.mark.parametrize(
    ("cleanup", "policy"),
    [
        ("DELETE_ON_CANCELLATION", CheckpointRetentionPolicy.RETAIN_ON_FAILURE),
        ("RETAIN_ON_CANCELLATION", CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION),
        ("NO_EXTERNALIZED_CHECKPOINTS", CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    ],
)
def test_each_cleanup_means_a_retention_policy(cleanup: str, policy: CheckpointRetentionPolicy) -> None:
    config = CheckpointConfig()
    config.externalized_checkpoint_retention = ExternalizedCheckpointCleanup[cleanup]
    assert config.retention_policy is policy
    assert config == CheckpointConfig.from_mapping({f"{C}.externalized-checkpoint-retention": cleanup})


def test_checkpoints_are_periodic_only_with_an_interval() -> None:
    config = CheckpointConfig()
    assert config.effective_interval is None
    config.checkpoint_interval = 10
    assert config.effective_interval == timedelta(milliseconds=10)


@pytest.mark.parametrize(
    ("interval", "pause", "effective"),
    [(30, 5, 30 * SECOND), (5, 30, 30 * SECOND), (5, 0, 5 * SECOND), (5, 500 * 86400, timedelta(days=365))],
)
def test_an_interval_below_the_pause_becomes_the_pause_of_at_most_a_year(
    interval: int, pause: int, effective: timedelta
) -> None:
    config = CheckpointConfig()
    config.checkpoint_interval = interval * SECOND
    config.min_pause_between_checkpoints = pause * SECOND
    assert config.effective_interval == effective
    assert config.effective_min_pause == min(pause * SECOND, timedelta(days=365))


def test_a_pause_means_one_checkpoint_at_a_time() -> None:
    config = CheckpointConfig()
    config.max_concurrent_checkpoints = 4
    assert config.effective_max_concurrent_checkpoints == 4
    config.min_pause_between_checkpoints = 1
    assert config.effective_max_concurrent_checkpoints == 1
    assert config.max_concurrent_checkpoints == 4


def test_a_configuration_can_be_sent_and_shows_what_was_changed() -> None:
    config = CheckpointConfig()
    config.num_retained = 3
    assert pickle.loads(pickle.dumps(config)) == config
    assert repr(config) == "CheckpointConfig(num_retained=3)"
    assert config != 3


@pytest.mark.parametrize(
    ("given", "interval"),
    [("auto", AUTO), (" AUTO", AUTO), ("5 min", timedelta(minutes=5)), (10, timedelta(0, 0, 10_000))],
)
def test_interval_is_a_duration_or_found(given: Any, interval: Any) -> None:
    assert parse_interval("checkpoint_interval", given) == interval


@pytest.mark.parametrize("given", ["automatic", 9, "", "-1 s", True])
def test_anything_else_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected checkpoint_interval"):
        parse_interval("checkpoint_interval", given)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_retained": 1},
        {"num_retained": 1000},
        {"checkpoint_timeout_seconds": 0.01},
        {"storage_base": "file:///data"},
        {"storage_base": "s3://bucket/base"},
    ],
)
def test_settings_in_range_pass(settings):
    require_valid(make_registration(**settings))


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"num_retained": 0}, "num_retained", "from 1 to 2147483647"),
        ({"num_retained": -3}, "num_retained", "from 1 to 2147483647"),
        ({"num_retained": 2**31}, "num_retained", "from 1 to 2147483647"),
        ({"retained_runs": -1}, "retained_runs", "from 0 to 2147483647"),
        ({"retained_runs": 1.5}, "retained_runs", "from 0 to 2147483647"),
        ({"retained_runs": 2**63 - 1}, "retained_runs", "from 0 to 2147483647"),
        ({"checkpoint_timeout_seconds": 0.0}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"checkpoint_timeout_seconds": float("nan")}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"checkpoint_timeout_seconds": 1e300}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"storage_base": "/data"}, "checkpoint_dir", "a URI such as file:///data/checkpoints"),
        ({"storage_base": ""}, "checkpoint_dir", "a URI such as file:///data/checkpoints"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value_and_what_is_expected(settings, key, expected):
    (value,) = settings.values()
    with pytest.raises(InvalidConfigurationError) as raised:
        require_valid(make_registration(**settings))
    assert str(raised.value) == f"Expected {key} to be {expected}, found {value!r}."
    assert raised.value.key == key
    assert raised.value.value is value


def test_the_first_setting_out_of_range_is_the_one_reported():
    with pytest.raises(InvalidConfigurationError, match="num_retained"):
        require_valid(make_registration(num_retained=0, checkpoint_timeout_seconds=0.0))


def test_a_condition_of_ones_own_decides():
    require("poll", 5, lambda n: n > 4, "above 4")
    with pytest.raises(InvalidConfigurationError, match="Expected poll to be above 4, found 4"):
        require("poll", 4, lambda n: n > 4, "above 4")


@pytest.mark.parametrize("value", ["5", timedelta(seconds=5), None])
def test_a_value_that_cannot_be_compared_is_out_of_range(value: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected poll to be above 4, found"):
        require("poll", value, lambda n: n > 4, "above 4")


@pytest.mark.parametrize("limit", [0, LARGEST_PAGE + 1])
def test_a_page_of_no_or_too_many_checkpoints_is_refused(limit: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="limit"):
        CheckpointPage(limit=limit)


@pytest.mark.parametrize("before", [0, -1, 2**63])
def test_a_page_before_what_is_no_checkpoint_id_is_refused(before: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="before"):
        CheckpointPage(before=before)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        (30000, timedelta(seconds=30)),
        ("30000", timedelta(seconds=30)),
        (0, timedelta(0)),
        ("-1", timedelta(milliseconds=-1)),
        ("10 min", timedelta(minutes=10)),
        ("10min", timedelta(minutes=10)),
        (" 2 H ", timedelta(hours=2)),
        ("1 day", timedelta(days=1)),
        ("5 s", timedelta(seconds=5)),
        ("250 ms", timedelta(microseconds=250_000)),
        ("7 µs", timedelta(microseconds=7)),
        ("7000 ns", timedelta(microseconds=7)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_a_bare_number_is_milliseconds_and_any_other_has_its_unit(text: object, duration: timedelta) -> None:
    assert parse_duration("timeout", text) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("20 KB", 20_000),
        ("20KiB", 20 << 10),
        ("20 kib", 20 << 10),
        ("1 MB", 10**6),
        ("1.5 MiB", 3 << 19),
        ("1 GB", 10**9),
        ("1 GiB", 1 << 30),
        ("3 TB", 3 * 10**12),
        ("3 TiB", 3 << 40),
        ("-1 B", -1),
    ],
)
def test_a_bare_number_is_bytes_and_units_are_named_for_what_they_are(text: object, size: int) -> None:
    assert parse_size("threshold", text) == size


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1.5 s", 2.5, True, None, "s", "5 s 3", "9" * 30])
def test_what_is_no_duration_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        parse_duration("timeout", text)
    assert str(refused.value).startswith("Expected timeout to be milliseconds, or")
    assert repr(text) in str(refused.value)
    assert (refused.value.key, refused.value.value) == ("timeout", text)


@pytest.mark.parametrize("text", ["", "much", "5 min", 1.5, "0.5 B", "20 k", "1m", "2g", "1 kibibytes", True, None])
def test_what_is_no_size_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected threshold to be bytes, or"):
        parse_size("threshold", text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_a_printed_size_can_be_read_again(count: int, text: str) -> None:
    assert readable_size(count) == text
    assert parse_size("size", text) == count
