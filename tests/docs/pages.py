"""Pages of the documentation and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FOLDERS_FOR_USERS = ("start", "use", "services")
FOR_USERS = [README, *(page for name in FOLDERS_FOR_USERS for page in sorted((ROOT / "docs" / name).glob("*.md")))]
"""What a new user reads; ``make test`` runs the code of these pages, and ``make soak`` that of the others."""
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]

_MARK = re.compile(r"<!--\s*(?P<kind>untested|file|output|fragment|needs):\s*(?P<text>.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Number of the line with the fence."""
    language: str
    """``text`` where none is given; directives of the site keep their braces."""
    code: str
    excuse: str | None = None
    """Why it is not tried, from ``<!-- untested: ... -->`` right before it."""
    file: str | None = None
    """File in which readers save it, from ``<!-- file: ... -->``; ``test_first_minutes`` runs it."""
    output: str | None = None
    """Block or test whose output it is, from ``<!-- output: ... -->``."""
    fragment: str | None = None
    """What it shows, from ``<!-- fragment: ... -->``: a drawing, or a part that cannot run alone."""
    needs: str | None = None
    """Module without which it is not run, from ``<!-- needs: ... -->``."""

    @property
    def name(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    return list(_blocks(page, MarkdownIt("commonmark").parse(page.read_text())))


def _blocks(page: Path, tokens: list[Token]) -> Iterator[Block]:
    marks: dict[str, str] = {}
    for token in tokens:
        if token.type in ("fence", "code_block"):
            words = token.info.split()
            line = (token.map or [0])[0] + 1
            yield Block(
                page=page,
                line=line,
                language=words[0] if words else "text",
                code=token.content,
                excuse=marks.get("untested"),
                file=marks.get("file"),
                output=marks.get("output"),
                fragment=marks.get("fragment"),
                needs=marks.get("needs"),
            )
        found = _MARK.fullmatch(token.content.strip()) if token.type == "html_block" else None
        marks = {found["kind"]: found["text"]} if found else {}


def runs_alone(block: Block) -> bool:
    """Tell whether the runner of Python blocks runs a block."""
    marks = (block.excuse, block.file, block.fragment)
    return block.language == "python" and not any(marks) and has_what_it_needs(block)


def has_what_it_needs(block: Block) -> bool:
    """Tell whether the module that a block needs is installed."""
    return block.needs is None or find_spec(block.needs) is not None


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in one of these languages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def code_spans(page: Path) -> list[str]:
    """Return what stands in the text of a page as code."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    children = [child for token in tokens for child in token.children or ()]
    return [child.content for child in children if child.type == "code_inline"]
