"""State backends by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.state.arrow.settings import PREFIX as ARROW_PREFIX
from airflow_provider_statecheck.state.backends.state_backend import (
    ConfigurableStateBackend,
    StateBackend,
    StateBackendFactory,
)


class MemoryStateBackendFactory:
    """Makes backends whose snapshots travel in their handles."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend with the directories of the configuration."""
        from airflow_provider_statecheck.state.backends.hash_state_backend import MemoryStateBackend

        return MemoryStateBackend(config=config)

    def get_identifier(self) -> str:
        """Return ``memory``."""
        return "memory"


class FsStateBackendFactory:
    """Makes backends that write snapshots to files."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend with the directories of the configuration."""
        from airflow_provider_statecheck.state.backends.hash_state_backend import FsStateBackend

        return FsStateBackend(config=config)

    def get_identifier(self) -> str:
        """Return ``filesystem``."""
        return "filesystem"


class ArrowStateBackendFactory:
    """Makes backends whose state is in Arrow files, of which snapshots add only the new ones."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """Make a backend as the configuration says."""
        from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowStateBackend

        backend: StateBackend = ArrowStateBackend().configure(config)
        return backend

    def get_identifier(self) -> str:
        """Return ``arrow``."""
        return "arrow"


BACKEND_KEYS = ("state.backend.type", "state.backend")
"""The settings that name a backend; the first wins."""
DEFAULT_BACKEND = "arrow"
ENTRY_POINT_GROUP = "airflow_provider_statecheck.state_backends"

_FACTORIES: dict[str, Callable[[], StateBackendFactory]] = {
    "memory": MemoryStateBackendFactory,
    "jobmanager": MemoryStateBackendFactory,
    "hashmap": MemoryStateBackendFactory,
    "filesystem": FsStateBackendFactory,
    "fs": FsStateBackendFactory,
    "arrow": ArrowStateBackendFactory,
}


def load_state_backend(application: StateBackend | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the backend of a stage.

    :param application: What the application set; what it leaves unset is taken from the configuration.
    :param config: Settings by their keys.
    :raises InvalidConfigurationError: if the configured backend cannot be loaded, naming it.
    """
    if application is not None:
        return application.configure(config) if isinstance(application, ConfigurableStateBackend) else application
    name = next((config[key] for key in BACKEND_KEYS if config.get(key) is not None), DEFAULT_BACKEND)
    # What a factory raises goes to the user as it is.
    return factory_of(name).create_from_config(config)


def backend_of_stage(wanted: StateBackend | str | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the backend of a stage, which writes where the stage does.

    :param wanted: What the stage declares: an object, a name, or nothing.
    :param config: Settings by their keys; a name that the stage declares comes before the one there.
    :raises InvalidConfigurationError: for a backend that cannot be loaded, or has directories of its own.
    """
    if isinstance(wanted, str):
        wanted, config = None, {**config, BACKEND_KEYS[0]: wanted}
    _require_known(config)
    backend = load_state_backend(wanted, config)
    paths = [name for name in ("checkpoint_path", "savepoint_path") if getattr(backend, name, None) is not None]
    if paths:
        raise InvalidConfigurationError(
            f"Expected {type(backend).__name__} without directories in a stage, found base_{paths[0]}; a stage writes below "
            f"its checkpoint_dir and savepoint_dir, so leave the path out.",
            key=f"base_{paths[0]}",
        )
    return backend


def _require_known(config: Mapping[str, Any]) -> None:
    name = next((config[key] for key in BACKEND_KEYS if config.get(key) is not None), DEFAULT_BACKEND)
    if str(name).lower() not in _FACTORIES:
        return  # a factory of the user knows its own settings
    for key in config:
        if key not in BACKEND_KEYS and not key.startswith(ARROW_PREFIX):
            raise InvalidConfigurationError(
                f"Expected settings that the state backend {name!r} has, found {key}, which it does not; remove it.",
                key=key,
            )


def factory_of(name: Any) -> StateBackendFactory:
    """
    Return the factory of a name, an entry point or a dotted path, in this order.

    :raises InvalidConfigurationError: if there is none.
    """
    known = _FACTORIES.get(name.lower()) if isinstance(name, str) else None
    return _made(name, known or _registered(name) or _imported(name))


def _registered(name: Any) -> Any:
    found = entry_points(group=ENTRY_POINT_GROUP, name=name) if isinstance(name, str) else ()
    for entry_point in found:
        try:
            return entry_point.load()
        except (ImportError, AttributeError) as error:
            raise _unloadable(name, f"its entry point {entry_point.value} cannot be imported: {error}") from error
    return None


def _imported(name: Any) -> Any:
    if not isinstance(name, str) or "." not in name:
        raise _unloadable(name, "there is no backend of that name")
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs code of the user
        raise _unloadable(name, f"it cannot be imported: {error}") from error


def _made(name: Any, found: Any) -> StateBackendFactory:
    try:
        factory = found() if isinstance(found, type) else found
    except (StateCheckError, OSError):
        raise
    except Exception as error:
        raise _unloadable(name, f"its factory cannot be made: {error}") from error
    if not isinstance(factory, StateBackendFactory):
        raise _unloadable(
            name, "it is no StateBackendFactory, because it lacks create_from_config() or get_identifier()"
        )
    return factory


def _unloadable(name: Any, reason: str) -> InvalidConfigurationError:
    names = ", ".join(sorted(_FACTORIES))
    return InvalidConfigurationError(
        f"Expected in {BACKEND_KEYS[1]} one of {names}, the name of an entry point of {ENTRY_POINT_GROUP}, or the dotted path of a "
        f"StateBackendFactory, found {name!r}: {reason}."
    )
