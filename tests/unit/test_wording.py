"""The check of the wording in prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.wording import MESSAGES, PROSE, files_of, hits_in, main, read_turns

MODULE = '''\
"""Reads a file that nobody
needs."""

import getpass

# It is written
# anew here.
nobody = anew = getpass.getuser()
USERS = {"nobody": nobody}
ERROR = f"{nobody} gave the file back; it lies "  f"in {anew}."
CODE = """
``nobody`` is a user.

>>> is_told = nobody or "is told"
"""
'''

PAGE = """\
# What becomes of files

Each driver is
told; `nobody` and [a link](nobody.md) are names.

```python
somebody = "is told"  # so many
```

- in a list

  ~~~text
  nobody
  ~~~

The state goes on from there.
"""


def reported(path: Path) -> list[tuple[int, str]]:
    return [(hit.line, hit.words) for hit in hits_in(path)]


def test_prose_of_a_module_is_reported_with_its_line(tmp_path: Path):
    (tmp_path / "module.py").write_text(MODULE)

    assert reported(tmp_path / "module.py") == [(1, "nobody"), (7, "anew"), (10, "lies in")]


def test_prose_of_a_page_is_reported_with_its_line(tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE)

    assert reported(tmp_path / "page.md") == [(1, "becomes of"), (3, "is told"), (16, "goes on from")]


@pytest.mark.parametrize(
    "text",
    [
        "The fake stands in for the coordinator.",
        "So many files that the listing is split.",
        "The cache lives on the executors.",
        "The value whatever_is holds nobody_knows.",
    ],
)
def test_usual_english_is_not_reported(tmp_path: Path, text: str):
    (tmp_path / "page.md").write_text(text)

    assert reported(tmp_path / "page.md") == []


@pytest.mark.parametrize(
    "text",
    [
        "The next attempt restores its part of the savepoint.",
        "The files of an unclaimed snapshot are retained.",
        "The stage restarts from a snapshot of another job.",
        "Airflow's operator passes the address.",
        "An operator of a stage has state.",
        "The epoch of the try is stored.",
        "The coordinator of the stage answers.",
    ],
)
def test_a_word_with_another_meaning_than_that_of_the_glossary_is_reported(tmp_path: Path, text: str):
    (tmp_path / "page.md").write_text(text)

    assert len(reported(tmp_path / "page.md")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A step in parts has a snapshot for each part.",
        "Each operator gives a member of the savepoint.",
        "The snapshot of the step was damaged.",
        "The Airflow operator registers an attempt in each try.",
        "The functions of a stage are those of one operator.",
    ],
)
def test_the_words_of_the_glossary_are_not_reported(tmp_path: Path, text: str):
    (tmp_path / "page.md").write_text(text)

    assert reported(tmp_path / "page.md") == []


@pytest.mark.parametrize("kind", [PROSE, MESSAGES])
def test_each_turn_has_a_suggestion(kind: str):
    assert [turn.pattern.pattern for turn in read_turns(kind) if not turn.instead] == []


MESSAGE = '''\
class Attempt:
    """An attempt is fenced
    by a newer one."""

    # A fenced attempt has lost.
    def refuse(self):
        """Fence the attempt."""
        raise ValueError(
            # It is fenced.
            "The attempt was "
            f"fenced; {self.fenced} lost its committables (fenced)."
        )
'''


def test_terms_of_the_code_are_reported_in_messages_and_not_in_docstrings(tmp_path: Path):
    (tmp_path / "module.py").write_text(MESSAGE)

    assert reported(tmp_path / "module.py") == [(11, "fenced"), (11, "committables")]


def test_terms_of_the_code_are_reported_in_what_a_template_shows(tmp_path: Path):
    (tmp_path / "page.html").write_text(
        '<p class="the fenced">{{ a.fenced or "so" }} is\n{% if fenced %}subsumed</p>\n'
    )

    assert reported(tmp_path / "page.html") == [(2, "subsumed")]


def test_directories_are_searched_for_modules_and_pages(tmp_path: Path):
    (tmp_path / "below").mkdir()
    for name in ("below/module.py", "page.md", "page.html", "data.json"):
        (tmp_path / name).touch()

    assert {str(path.relative_to(tmp_path)) for path in files_of([tmp_path])} == {
        "below/module.py",
        "page.md",
        "page.html",
    }


def test_a_hit_is_printed_with_its_suggestion_and_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "page.md").write_text("One\n\nIt failed for good.\n")

    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f'{tmp_path}/page.md:3: "for good": write "permanently"\n'


def test_a_clean_page_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "page.md").write_text("Each checkpoint has an id.\n")

    assert main([str(tmp_path / "page.md")]) == 0
    assert capsys.readouterr().out == ""


def test_a_missing_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "page.md")])

    assert "expected a file or a directory" in capsys.readouterr().err


def test_the_check_passes_its_own_text():
    program = Path(__file__).parents[2] / "scripts" / "wording.py"

    assert reported(program) == []
