"""Function of R3: the reachability of other airports for the passengers of a flight, computed row by row in numpy."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.r3_calls import note_call

AIRPORTS = "airports.csv"
"""File in the folder of the input."""
SCORE = "score"
ADDED = f"{SCORE} double"
BATCH_ROWS = 2000
"""Rows per call, for all sides; a call takes about a fifth of a second."""
_ROWS_AT_ONCE = 64  # their temporary arrays fit into the cache of a processor
_EARTH_DIAMETER_KM = 12742.0
_USUAL_KM, _SCALE_KM, _KM_PER_MINUTE = 800.0, 120.0, 2.0


def score_batches(airports: str, marks: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Add the score to each pandas DataFrame."""
    yield from map(partial(score_batch, airports, marks), batches)


def score_batch(airports: str, marks: str, batch: Any) -> Any:
    """
    Add the score to a pandas DataFrame, and record the call.

    :param airports: File with the airports.
    :param marks: File for the record.
    :param batch: Flights.
    """
    figures = (batch[name].to_numpy() for name in ("id", "latitude", "longitude", "delay"))
    return batch.assign(**{SCORE: scores(airports, marks, *figures)})


def scores(airports: str, marks: str, ids: Any, latitude: Any, longitude: Any, delay: Any) -> Any:
    """Return the scores of flights that are given as numpy arrays, and record the call."""
    places = _places(airports)
    found = np.empty(len(ids))
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        found[some] = _reachable(places, np.radians(latitude[some]), np.radians(longitude[some]), delay[some])
    note_call(marks, ids)
    return found


def _reachable(places: tuple[Any, Any], latitude: Any, longitude: Any, delay: Any) -> Any:
    """
    Return the mean of a logistic function of the distance to all airports.

    A delay makes distant ones less useful.
    """
    north, east = (
        np.subtract.outer(mine, theirs) / 2 for mine, theirs in zip((latitude, longitude), places, strict=True)
    )
    haversine = np.sin(north) ** 2 + np.multiply.outer(np.cos(latitude), np.cos(places[0])) * np.sin(east) ** 2
    distance = _EARTH_DIAMETER_KM * np.arcsin(np.sqrt(haversine))
    excess = distance - _USUAL_KM + _KM_PER_MINUTE * delay[:, np.newaxis]
    return (1 / (1 + np.exp(excess / _SCALE_KM))).mean(axis=1)


@cache
def _places(airports: str) -> tuple[Any, Any]:
    with Path(airports).open() as file:
        rows = list(csv.DictReader(file))
    latitude, longitude = (np.radians([float(row[name]) for row in rows]) for name in ("lat", "lon"))
    return latitude, longitude
