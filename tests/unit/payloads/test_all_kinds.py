"""What is so for each kind of specification."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.payloads.additions import Additions
from tests.unit.payloads.specifications import FIRST, INSTALLED, KINDS, RETRY, STAGE, Kind

EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
OF_STAGES = {name: kind for name, kind in KINDS.items() if kind.of_stage is not None}
EACH_OF_STAGES = pytest.mark.parametrize("kind", OF_STAGES.values(), ids=OF_STAGES)


def shipping(kind: Kind, additions: Additions) -> Additions:
    return additions if kind.can_ship else replace(additions, package=None, wheel=None)


def added(kind: Kind, additions: Additions, spec: Any = None) -> Any:
    return kind.with_additions(kind.example if spec is None else spec, shipping(kind, additions))


OURS = ("spark.statecheck.mailbox", "--statecheck-mailbox", "statecheck-mailbox")


def without_additions(spec: Any) -> Any:
    """A specification without what was added, and without what is empty."""
    if isinstance(spec, dict):
        found = {name: without_additions(value) for name, value in spec.items() if name not in OURS}
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}
    if isinstance(spec, list | tuple):
        return [each for each in words_without(spec) if each not in ("", {})]
    if isinstance(spec, str) and spec.startswith("--") and " " in spec:
        return " ".join(words_without(spec.split(" ")))
    if isinstance(spec, str):
        return ",".join(each for each in spec.split(",") if "/airflow_provider_statecheck-" not in each)
    return spec


def words_without(words: Any) -> list[Any]:
    """Words without options, and without arguments, that were added."""
    kept: list[Any] = []
    for word in words:
        if str(word).startswith(OURS):
            del kept[len(kept) - (kept[-1:] == ["--conf"]) :]
        elif kept[-1:] == ["--py-files"] and without_additions(word) == "":
            kept.pop()
        else:
            kept.append(without_additions(word))
    return kept


@EACH_KIND
def test_mailbox_is_in_it_once(kind: Kind) -> None:
    assert json.dumps(added(kind, FIRST)).count(FIRST.mailbox) == 1


@EACH_KIND
def test_package_is_in_it_once_unless_it_is_installed(kind: Kind) -> None:
    assert json.dumps(added(kind, FIRST)).count("airflow_provider_statecheck-") == kind.can_ship
    assert "airflow_provider_statecheck" not in json.dumps(added(kind, INSTALLED))


@EACH_KIND
def test_argument_is_not_changed(kind: Kind) -> None:
    before = copy.deepcopy(kind.example)
    added(kind, FIRST)
    assert kind.example == before


@EACH_KIND
def test_twice_is_once(kind: Kind) -> None:
    once = added(kind, FIRST)
    assert added(kind, FIRST, once) == once


@EACH_KIND
def test_retry_replaces_what_the_first_try_added(kind: Kind) -> None:
    assert added(kind, RETRY, added(kind, FIRST)) == added(kind, RETRY)


@EACH_KIND
def test_nothing_else_changes(kind: Kind) -> None:
    assert without_additions(added(kind, FIRST)) == without_additions(kind.example)


@EACH_KIND
def test_names_keep_their_order(kind: Kind) -> None:
    found = added(kind, FIRST)
    if isinstance(kind.example, dict):
        assert list(found)[: len(kind.example)] == list(kind.example)


@EACH_OF_STAGES
def test_stage_takes_the_place_of_an_application(kind: Kind) -> None:
    text = json.dumps(added(kind, STAGE, kind.of_stage))
    assert text.count("/statecheck_stage.py") == 1
    assert text.count("sales:totals") == 1
    assert text.count(STAGE.mailbox) == 1


@EACH_OF_STAGES
def test_retry_replaces_the_stage_of_the_first_try(kind: Kind) -> None:
    again = replace(
        RETRY, application="s3://lake/checkpoints/packages/dd/statecheck_stage.py", arguments=("sales:new",)
    )
    once = added(kind, STAGE, kind.of_stage)
    assert added(kind, again, once) == added(kind, again, kind.of_stage)
