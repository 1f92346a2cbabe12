"""A parsed page: its elements with their text, for checks that do not depend on how the HTML is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "img"}


@dataclass
class Element:
    """An element with its attributes and what is inside."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text inside, with single spaces."""
        return " ".join("".join(self.texts()).split())

    def texts(self) -> Iterator[str]:
        """The pieces of text inside, with white space between blocks."""
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child.texts()
                yield " " if child.tag in ("td", "th", "dd", "dt", "p", "tr", "div", "span") else ""

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """The elements below with a tag and attributes; an underscore stands for a dash."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self.walk() if tag in ("", e.tag) and wanted.items() <= e.attributes.items()]

    def one(self, tag: str = "", **attributes: str) -> Element:
        """The only such element below."""
        (found,) = self.all(tag, **attributes)
        return found

    def walk(self) -> Iterator[Element]:
        """All elements below, in their order."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()


class Page(HTMLParser):
    """A parsed page; every element must be closed, and in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(text)
        assert self._open == [self.root], f"left open: {[e.tag for e in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self._open[-1])
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        closed = self._open.pop()
        assert closed.tag == tag, f"</{tag}> closes <{closed.tag}>"

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    @property
    def text(self) -> str:
        """The text of the page."""
        return self.root.text

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """The elements with a tag and attributes."""
        return self.root.all(tag, **attributes)

    def one(self, tag: str = "", **attributes: str) -> Element:
        """The only such element."""
        return self.root.one(tag, **attributes)

    def table(self, caption: str) -> list[dict[str, str]]:
        """The rows of a table as texts by the heading of their column."""
        (table,) = [each for each in self.all("table") if each.one("caption").text == caption]
        # An arrow marks the column by which a list is sorted.
        names = [e.text.rstrip(" ▲▼") for e in table.one("thead").walk() if e.tag in ("th", "td")]
        rows = table.one("tbody").all("tr")
        cells = [[e.text for e in row.children if isinstance(e, Element)] for row in rows]
        return [dict(zip(names, each, strict=True)) for each in cells]

    def links(self) -> dict[str, str]:
        """The targets of links by their text."""
        return {e.text: e.attributes["href"] for e in self.all("a")}
