"""Finds a stage by its name."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.vertices import vertices_of


def load_stage(stage: str | Stage, *, parallelism: int | None = None) -> Stage:
    """
    Return a stage that can run.

    :param stage: The stage, or where it is as ``module:attribute``; a callable there is called and gives it.
    :param parallelism: Number of subtasks in place of the stage's own.
    :raises InvalidConfigurationError: if there is no stage, or its parts do not fit.
    """
    found = stage if isinstance(stage, Stage) else _made(stage)
    if parallelism is not None:
        found = replace(found, parallelism=parallelism)
    vertices_of(found)
    return found


def _made(place: object) -> Stage:
    if not isinstance(place, str):
        raise InvalidConfigurationError(
            f"Expected a Stage, or where it is as module:attribute, found {type(place).__name__}."
        )
    found = _found(place)
    made = found() if callable(found) else found
    if not isinstance(made, Stage):
        raise InvalidConfigurationError(f"Expected a Stage at {place!r}, found {type(made).__name__}.")
    return made


def _found(place: str) -> Any:
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise InvalidConfigurationError(f"Expected where the stage is, as module:attribute, found {place!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigurationError(
            f"Expected a stage at {place!r}, found none: {error}. The module has to be importable where the stage runs: "
            f"below the Dags folder, installed, or sent along with the application."
        ) from error
