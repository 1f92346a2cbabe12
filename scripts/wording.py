"""
Check of phrases in prose: comments, docstrings and strings of Python files, and Markdown outside of code.

``python -m scripts.wording [PATH ...]`` checks files and directories, by default the package and its documentation.
It prints each hit with its line and a suggestion. The exit status is 1 if there are hits.
The phrases are listed in ``wording.toml``.
"""

from __future__ import annotations

import argparse
import functools
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PLACES = ("airflow_provider_statecheck", "scripts", "docker", "dags", "benchmarks", "docs", "README.md")

# Replaces characters that are not prose. It is not white space, so no phrase matches across it.
_GAP = "\0"
_PROSE_TOKENS = ("COMMENT", "STRING", "FSTRING_MIDDLE")
_MARKS = re.compile(r"\A\w*(?:\"\"\"|\'\'\'|\"|\')|(?:\"\"\"|\'\'\'|\"|\')\Z|\A#+|\\[nrt]")
_FIELDS = re.compile(r"\{[^{}]*\}")
_CODE_IN_TEXT = re.compile(r"(?P<ticks>`+)[^`]+(?P=ticks)|^[ \t]*>>>.*$|:param \w+:", re.MULTILINE)
_FENCES = re.compile(r"^[ >]*(?P<fence>```+|~~~+)[^\n]*\n.*?^[ >]*(?P=fence)[^\n]*$", re.MULTILINE | re.DOTALL)
_LINK_TARGETS = re.compile(r"(?<=\])\([^)\s]*\)|<?https?://[^\s>)]*>?")


@dataclass(frozen=True, slots=True)
class Turn:
    """Phrase to avoid, with a suggestion."""

    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Occurrence of a phrase in a file."""

    path: Path
    line: int
    words: str
    turn: Turn

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.words}": write {self.turn.instead}'


@functools.cache
def read_turns() -> list[Turn]:
    """Return the phrases of ``wording.toml``."""
    listed: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [Turn(_pattern(words), instead) for words, instead in listed.items()]


def _pattern(words: str) -> re.Pattern[str]:
    spaced = words.replace(" ", r"\s+")
    return re.compile(rf"\b(?:{spaced})\b", re.IGNORECASE)


def main(arguments: list[str] | None = None) -> int:
    """Print the hits and return the exit status."""
    chosen = _parser().parse_args(arguments)
    hits = [hit for path in files_of(chosen.paths) for hit in hits_in(path)]
    if chosen.count:
        for pattern, number in Counter(hit.turn.pattern.pattern for hit in hits).most_common():
            print(f"{number:6} {pattern}")
    else:
        print(*hits, sep="\n", end="\n" if hits else "")
    return 1 if hits else 0


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files of files and directories."""
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.suffix in (".py", ".md"))


def hits_in(path: Path) -> list[Hit]:
    """Return the hits in a file, sorted by line."""
    text = path.read_text()
    prose = python_prose(text) if path.suffix == ".py" else markdown_prose(text)
    hits = [_hit(path, prose, found, turn) for turn in read_turns() for found in turn.pattern.finditer(prose)]
    return sorted(hits, key=lambda hit: hit.line)


def python_prose(text: str) -> str:
    """Return a text of the same length that contains only the comments and strings of a module."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    prose = list(_blank(text))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        # A string without white space is a name or a key, not prose.
        if tokenize.tok_name[token.type] in _PROSE_TOKENS and len(token.string.split()) > 1:
            begin, end = (starts[line - 1] + column for line, column in (token.start, token.end))
            prose[begin:end] = _words(text[begin:end])
    return "".join(prose)


def markdown_prose(text: str) -> str:
    """Return a text of the same length without code and link targets."""
    for code in (_FENCES, _CODE_IN_TEXT, _LINK_TARGETS):
        text = code.sub(_blank_match, text)
    return text


def _words(token: str) -> str:
    """Return a comment or a string without its delimiters and without code."""
    spaced = _MARKS.sub(lambda mark: " " * len(mark[0]), token)
    return _CODE_IN_TEXT.sub(_blank_match, _FIELDS.sub(_blank_match, spaced))


def _blank_match(found: re.Match[str]) -> str:
    return _blank(found[0])


def _blank(text: str) -> str:
    return re.sub(r"\S", _GAP, text)


def _hit(path: Path, prose: str, found: re.Match[str], turn: Turn) -> Hit:
    return Hit(path, prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), turn)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.wording", description="Check prose for phrases to avoid.")
    parser.add_argument("paths", nargs="*", type=_existing, default=[Path(place) for place in PLACES], metavar="PATH")
    parser.add_argument("--count", action="store_true", help="print the number of hits of each phrase")
    return parser


def _existing(place: str) -> Path:
    if not Path(place).exists():
        raise argparse.ArgumentTypeError(f"expected a file or a directory, found nothing at {place}")
    return Path(place)


if __name__ == "__main__":
    sys.exit(main())
