"""Which backend a stage gets, with which settings, and what becomes of names that lead nowhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends import (
    BACKENDS,
    ENTRY_POINT_GROUP,
    ArrowStateBackend,
    FsStateBackend,
    MemoryStateBackend,
    StateBackend,
    load_state_backend,
)

HERE = __name__
CHECKPOINTS = "execution.checkpointing.dir"
SAVEPOINTS = "execution.checkpointing.savepoint-dir"


class OwnFactory:
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        return MemoryStateBackend(max_state_size=config["own.size"])

    def get_identifier(self) -> str:
        return "own"


class RefusingFactory(OwnFactory):
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        raise config["error"]


class UnmakeableFactory(OwnFactory):
    def __init__(self, needed: str) -> None:
        raise NotImplementedError


class OtherFactory(OwnFactory):
    def get_identifier(self) -> str:
        return "other"


NO_FACTORY = 5
MADE_FACTORY = OwnFactory()


@pytest.mark.parametrize(
    ("application", "config", "kind"),
    [
        (MemoryStateBackend(), {"state.backend": "filesystem"}, MemoryStateBackend),
        (None, {"state.backend": "filesystem"}, FsStateBackend),
        (None, {"state.backend": "filesystem", "state.backend.type": "memory"}, MemoryStateBackend),
        (None, {}, ArrowStateBackend),
    ],
    ids=["that of the application", "the configured one", "that of the new spelling", "the default"],
)
def test_backend_is_the_first_of_these(application: Any, config: dict[str, str], kind: type) -> None:
    assert isinstance(load_state_backend(application, config), kind)


def test_backend_that_is_not_configurable_is_taken_as_it_is() -> None:
    class Own:
        create_keyed_state_backend = create_operator_state_backend = resolve_checkpoint = None

    own: Any = Own()
    assert load_state_backend(own, {CHECKPOINTS: "file:///configured"}) is own


@pytest.mark.parametrize("kind", [MemoryStateBackend, FsStateBackend])
def test_only_unset_fields_are_taken_from_the_configuration(kind: Any) -> None:
    config = {CHECKPOINTS: "file:///configured/c", SAVEPOINTS: "file:///configured/s"}
    completed: Any = load_state_backend(kind("file:///own"), config)
    assert (completed.checkpoint_path, completed.savepoint_path) == ("file:///own", "file:///configured/s")


def test_completing_a_backend_changes_a_copy_and_keeps_its_limit() -> None:
    own = MemoryStateBackend(max_state_size=7)
    completed: Any = load_state_backend(own, {CHECKPOINTS: "file:///configured"})
    assert completed.max_state_size == 7
    assert own.checkpoint_path is None


@pytest.mark.parametrize(
    ("name", "kind", "identifier"),
    [
        ("memory", MemoryStateBackend, "memory"),
        ("jobmanager", MemoryStateBackend, "memory"),
        ("hashmap", MemoryStateBackend, "memory"),
        ("HashMap", MemoryStateBackend, "memory"),
        ("filesystem", FsStateBackend, "filesystem"),
        ("fs", FsStateBackend, "filesystem"),
        ("arrow", ArrowStateBackend, "arrow"),
    ],
)
def test_names(name: str, kind: type, identifier: str) -> None:
    assert isinstance(load_state_backend(None, {"state.backend": name}), kind)
    assert BACKENDS.find(name).get_identifier() == identifier


def test_configured_backend_has_the_configured_directories() -> None:
    config = {"state.backend": "fs", "state.checkpoints.dir": "file:///c", "state.savepoints.dir": "file:///s"}
    backend: Any = load_state_backend(None, config)
    assert (backend.checkpoint_path, backend.savepoint_path) == ("file:///c", "file:///s")


@pytest.mark.parametrize("name", [f"{HERE}.OwnFactory", f"{HERE}:OwnFactory", f"{HERE}.MADE_FACTORY", "own"])
def test_factory_is_found_by_its_dotted_path_or_entry_point(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, f"{HERE}:OwnFactory")
    backend: Any = load_state_backend(None, {"state.backend": name, "own.size": 9})
    assert backend.max_state_size == 9


def test_factory_of_an_entry_point_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, f"{HERE}:OtherFactory")
    with pytest.raises(InvalidConfigurationError, match=r"'own': the factory of this entry point says .* 'other'"):
        load_state_backend(None, {"state.backend": "own"})


def test_entry_point_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, f"{HERE}:Missing")
    with pytest.raises(InvalidConfigurationError, match=r"'own'.*Missing"):
        load_state_backend(None, {"state.backend": "own"})


@pytest.mark.parametrize(
    "name",
    ["rocks", "no.such.module", f"{HERE}.Missing", f"{HERE}.NO_FACTORY", f"{HERE}.UnmakeableFactory", "..", "", 5],
)
def test_name_that_leads_to_no_factory_is_named(name: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"state\.backend") as failure:
        load_state_backend(None, {"state.backend": name})
    assert repr(name) in str(failure.value)


@pytest.mark.parametrize("error", [InvalidConfigurationError("bad"), OSError("gone")])
def test_errors_of_a_factory_go_on_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as failure:
        load_state_backend(None, {"state.backend": f"{HERE}.RefusingFactory", "error": error})
    assert failure.value is error


def test_setting_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError):
        load_state_backend(None, {"state.backend": "fs", CHECKPOINTS: "no-scheme"})


def test_name_of_the_backend_is_no_unknown_setting(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_state_backend(None, {"state.backend": "fs", "state.backend.type": "fs"})
    assert caplog.records == []


def entry_point(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    found = EntryPoint(name="own", value=value, group=ENTRY_POINT_GROUP)

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        return [found] if (group, name) == (found.group, found.name) else []

    monkeypatch.setattr("airflow_provider_statecheck.storage.views.checkpoint_storages.entry_points", entry_points)


def test_configuration_fills_what_the_application_left_unset() -> None:
    config = {"state.backend.arrow.block-rows": "100", "state.backend.arrow.part-bytes": "1 MiB"}
    assert ArrowStateBackend().configure(config).settings == ArrowStateSettings(block_rows=100, part_bytes=1 << 20)
    own = ArrowStateBackend(ArrowStateSettings(block_rows=7))
    assert own.configure(config).settings == own.settings


def test_compression_may_be_turned_off() -> None:
    assert ArrowStateSettings.from_config({"state.backend.arrow.compression": "none"}).compression is None


@pytest.mark.parametrize(
    "config",
    [
        {"state.backend.arrow.block-rows": 0},
        {"state.backend.arrow.memtable-bytes": "many"},
        {"state.backend.arrow.compression": "gzip"},
    ],
)
def test_setting_out_of_its_range_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigurationError):
        ArrowStateSettings.from_config(config)
