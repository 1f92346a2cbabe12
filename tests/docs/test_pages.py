"""The extractor that the other tests rely on."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import blocks_of

PAGE = """\
# A page

```python
1
```

- in a list

  ```bash
  make test
  ```

<!-- untested: needs a cluster of two machines -->
```python
2
```

~~~
no language
~~~

    indented

<!-- another comment -->
```{toctree}
a
```
"""


def test_every_block_is_found_wherever_it_stands(tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE)
    found = [(block.line, block.language, block.code) for block in blocks_of(tmp_path / "page.md")]

    assert found == [
        (3, "python", "1\n"),
        (9, "bash", "make test\n"),
        (14, "python", "2\n"),
        (18, "text", "no language\n"),
        (22, "text", "indented\n"),
        (25, "{toctree}", "a\n"),
    ]


def test_an_excuse_is_that_of_the_block_right_after_it(tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE)
    excuses = [block.excuse for block in blocks_of(tmp_path / "page.md")]

    assert excuses == [None, None, "needs a cluster of two machines", None, None, None]
