"""What the benchmarks work out themselves: the chart of their results, and the moment of a kill."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plots, run
from benchmarks.r1_marks import Mark, Moment, mark, marks_in

SVG = "{http://www.w3.org/2000/svg}"
GOAL_COLOR = "#000000"


def result(id: str = "K1", case: str = "a vs b", ratio: float = 2.0, goal: float | None = 3.0) -> dict[str, Any]:
    return {"id": id, "case": case, "ratio": ratio, "goal": goal, "met": None if goal is None else ratio >= goal}


def drawn(*results: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(plots.chart(results))


def bars(chart: ElementTree.Element, color: str) -> list[tuple[float, float]]:
    """Return where bars of a color begin and how long they are; the legend has one of each too."""
    found = [each for each in chart.iter(f"{SVG}rect") if each.get("fill") == color]
    return [(float(each.attrib["x"]), float(each.attrib["width"])) for each in found][1:]


def test_every_workload_has_its_limit_named() -> None:
    assert set(run.WORKLOADS) <= set(plots.LIMITS)


def test_an_unknown_workload_is_refused_before_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--only", "d1,K1"])
    with pytest.raises(SystemExit):
        run.main()
    assert "found d1" in capsys.readouterr().err


def test_a_ratio_above_one_goes_right_from_one_and_one_below_left() -> None:
    results = [result(ratio=10.0), result(ratio=0.1, goal=0.5)]
    scale, chart = plots.Scale.of(results), drawn(*results)

    one = scale.x(1.0)
    assert bars(chart, "#2a9d6f") == [pytest.approx((one, scale.x(10.0) - one), abs=0.1)]
    assert bars(chart, "#d9663d") == [pytest.approx((scale.x(0.1), one - scale.x(0.1)), abs=0.1)]


def test_a_result_without_a_goal_has_no_line_for_one() -> None:
    chart = drawn(result(goal=None), result(goal=3.0))

    assert [each.get("stroke") for each in chart.iter(f"{SVG}line")].count(GOAL_COLOR) == 1


def test_each_workload_is_headed_once_by_its_limit() -> None:
    chart = drawn(result("K1", "one"), result("K1", "two"), result("S1", "three <&> four"))

    texts = [each.text or "" for each in chart.iter(f"{SVG}text")]
    assert [text for text in texts if ": the limit is" in text] == [
        f"{name}: the limit is {plots.LIMITS[name]}" for name in ("K1", "S1")
    ]
    assert "three <&> four" in texts


def test_everything_lies_within_the_scale() -> None:
    results = [result(ratio=0.03, goal=None), result(ratio=700.0, goal=20.0)]

    scale = plots.Scale.of(results)

    assert (scale.low, scale.high) == (-2, 3)
    assert scale.x(0.01) == plots.LEFT
    assert scale.x(1000.0) == plots.WIDTH - plots.RIGHT


def test_the_moment_of_a_kill_is_told_from_the_mark_before_it(tmp_path: Path) -> None:
    undisturbed = [Mark("try", 0.0), Mark("begin", 10.0), Mark("one", 50.0), Mark("two", 90.0), Mark("end", 110.0)]

    moment = Moment.at(0.9, undisturbed)

    assert moment.after == "two"
    assert moment.seconds == pytest.approx(10.0)
    begun = Mark("begin", 0.0)
    assert moment.is_over(_file_of(tmp_path / "over", begun, Mark("two", time.time() - 11.0)))
    assert not moment.is_over(_file_of(tmp_path / "early", begun, Mark("two", time.time())))
    assert not moment.is_over(_file_of(tmp_path / "earlier", begun))


def _file_of(file: Path, *marks: Mark) -> Path:
    file.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in marks))
    return file


def test_a_mark_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "marks"
    mark(str(file), "begin")
    with file.open("a") as marks:
        marks.write('{"name": "en')

    assert [each.name for each in marks_in(file)] == ["begin"]
