"""
Check of phrases in prose: comments, docstrings and strings of Python files, templates, and Markdown outside of code.

``python -m scripts.wording [PATH ...]`` checks files and directories, by default the package and its documentation.
It prints each hit with its line and a suggestion. The exit status is 1 if there are hits.
The phrases are listed in ``wording.toml``; some concern only messages, which users read without a glossary.
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

PLACES = (
    *("airflow_provider_statecheck", "scripts", "docker", "dags", "benchmarks", "docs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
PROSE, MESSAGES = "prose", "messages"

# Replaces characters that are not prose. It is not white space, so no phrase matches across it.
_GAP = "\0"
_STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_BEFORE_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_BLANK_TOKENS = (tokenize.COMMENT, tokenize.NL)
_MARKS = re.compile(r"\A\w*(?:\"\"\"|\'\'\'|\"|\')|(?:\"\"\"|\'\'\'|\"|\')\Z|\A#+|\\[nrt]")
_FIELDS = re.compile(r"\{[^{}]*\}")
_CODE_IN_TEXT = re.compile(r"(?P<ticks>`+)[^`]+(?P=ticks)|^[ \t]*>>>.*$|:param \w+:", re.MULTILINE)
_FENCES = re.compile(r"^[ >]*(?P<bars>```+|~~~+)[^\n]*\n.*?^[ >]*(?P=bars)[^\n]*$", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"<[^<>]*>|\{[%#{].*?[}%#]\}", re.DOTALL)
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
def read_turns(kind: str) -> list[Turn]:
    """Return the phrases of ``wording.toml`` to avoid in all prose, or in messages."""
    listed: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [Turn(_pattern(words), instead) for words, instead in listed[kind].items()]


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
    """Yield the Python and Markdown files and the templates of files and directories."""
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.suffix in _TEXTS)


def hits_in(path: Path) -> list[Hit]:
    """Return the hits in a file, sorted by line."""
    texts = _TEXTS[path.suffix](path.read_text())
    found = [
        (prose, hit, turn) for kind, prose in texts for turn in read_turns(kind) for hit in turn.pattern.finditer(prose)
    ]
    return sorted((_hit(path, *each) for each in found), key=lambda hit: hit.line)


def python_prose(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts of the same length that contain only the comments and strings of a module, and only its messages."""
    yield PROSE, _only(text, [token for token, _ in _strings(text)] + _comments(text))
    yield MESSAGES, _only(text, [token for token, is_docstring in _strings(text) if not is_docstring])


def _only(text: str, tokens: Iterable[tokenize.TokenInfo]) -> str:
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    prose = list(_blank(text))
    for token in tokens:
        # A string without white space is a name or a key, not prose.
        if len(token.string.split()) > 1:
            begin, end = (starts[line - 1] + column for line, column in (token.start, token.end))
            prose[begin:end] = _words(text[begin:end])
    return "".join(prose)


def _comments(text: str) -> list[tokenize.TokenInfo]:
    return [token for token in _tokens(text) if token.type == tokenize.COMMENT]


def _strings(text: str) -> Iterator[tuple[tokenize.TokenInfo, bool]]:
    """Yield the strings of a module, each with whether it is a statement, such as a docstring."""
    before = tokenize.NEWLINE
    for token in _tokens(text):
        if token.type in _STRINGS:
            yield token, before in _BEFORE_STATEMENT
        if token.type not in _BLANK_TOKENS:
            before = token.type


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def markdown_prose(text: str) -> Iterator[tuple[str, str]]:
    """Yield a text of the same length without code and link targets."""
    for code in (_FENCES, _CODE_IN_TEXT, _LINK_TARGETS):
        text = code.sub(_blank_match, text)
    yield PROSE, text


def template_prose(text: str) -> Iterator[tuple[str, str]]:
    """Yield a template without its tags and expressions."""
    shown = _MARKUP.sub(_blank_match, text)
    yield PROSE, shown
    yield MESSAGES, shown


_TEXTS = {".py": python_prose, ".md": markdown_prose, ".html": template_prose}


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
