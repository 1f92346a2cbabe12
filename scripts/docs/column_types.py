"""Tables of the types of columns, from the results of their tests."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.docs.tables import code, table

_RESULTS = Path(__file__).parents[2] / "tests" / "types" / "results.json"
_WORDS = {"yes": "yes", "refused": "refused", "absent": "none"}


def types_table(group: str) -> str:
    """
    Return how each type is handled in some places; types with the same results share a row.

    :param group: A group of places in the results.
    """
    places: dict[str, dict[str, str]] = json.loads(_RESULTS.read_text())[group]
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind in next(iter(places.values())):
        rows.setdefault(tuple(_cell(found[kind]) for found in places.values()), []).append(code(kind))
    return table(["Type", *places], [[", ".join(kinds), *cells] for cells, kinds in rows.items()])


def _cell(outcome: str) -> str:
    return _WORDS.get(outcome) or code(outcome)
