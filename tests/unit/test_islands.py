"""The check that not only tests use the code of the package."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from scripts.islands.__main__ import ADVICE, main

EXPORTS = """
from shop.orders import sell

__all__ = ["sell"]
"""


class Shop:
    """A package with one public function, ``shop.orders.sell``, in the current folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.write("shop/__init__.py", EXPORTS)

    def write(self, place: str, text: str) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))

    def check(self, roots: str | None = None) -> list[str]:
        """Return the printed lines without the advice, which must follow definitions that only tests use."""
        options = []
        if roots is not None:
            self.write("roots.txt", roots)
            options = ["--roots", "roots.txt"]
        status = main(["--package", "shop", *options])
        printed = self._capsys.readouterr().out.splitlines()
        assert status == (1 if printed else 0)
        assert (ADVICE in printed) == any(".py:" in line for line in printed)
        return [line for line in printed if line != ADVICE]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path, capsys)


def test_a_function_that_only_a_test_calls_is_found(shop: Shop):
    shop.write("shop/orders.py", "def sell(): ...\n\n\ndef refund(): ...\n")
    shop.write("tests/test_orders.py", "from shop.orders import refund\n\nrefund()\n")

    assert shop.check() == ["shop/orders.py:4: function refund"]


def test_a_function_that_only_the_test_utilities_call_is_found(shop: Shop):
    shop.write("shop/orders.py", "def sell(): ...\ndef refund(): ...\n")
    shop.write("shop/testing/orders.py", "from shop.orders import refund\n\ndef refunded(): refund()\n")

    assert shop.check() == ["shop/orders.py:2: function refund"]


def test_what_a_public_function_calls_through_imports_and_constants_is_not_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        import shop.prices as prices

        def sell():
            from shop.taxes import TAXES
            return prices.price() + TAXES["de"]()
        """,
    )
    shop.write("shop/prices.py", "from shop._prices import price as price\n")
    shop.write("shop/_prices.py", "def price(): ...\n")
    shop.write("shop/taxes.py", "def german(): ...\n\nTAXES = {'de': german}\n")

    assert shop.check() == []


def test_what_runs_at_import_is_live(shop: Shop):
    shop.write("shop/orders.py", "from shop import prices\n\ndef sell(): ...\n")
    shop.write("shop/prices.py", "def load(): ...\n\nload()\n")

    assert shop.check() == []


def test_a_name_in_a_text_is_live(shop: Shop):
    shop.write("shop/orders.py", "def sell(): return 'shop.prices:price'\n")
    shop.write("shop/prices.py", "def price(): ...\n")

    assert shop.check() == []


@pytest.mark.parametrize(
    "code",
    [
        "def sell(price: Price) -> Price | None: ...",
        "def sell(price: 'Price'): ...",
        "def sell(price): return isinstance(price, Price)",
        "def sell(price): return cast(Price, price)",
        "def sell(price):\n    match price:\n        case Price(): ...",
        "def sell(prices: list[Price]):\n    first: Price = prices[0]",
        "def sell(price):\n    'Has a Price.'",
    ],
    ids=["signature", "quoted", "isinstance", "cast", "case", "variable", "docstring"],
)
def test_a_class_that_only_types_name_is_found(shop: Shop, code: str):
    shop.write("shop/orders.py", f"class Price: ...\n\n{code}\n")

    assert shop.check() == ["shop/orders.py:1: class Price"]


def test_a_class_that_only_type_checkers_import_is_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from shop.prices import Price
        def sell() -> Price: ...
        """,
    )
    shop.write("shop/prices.py", "class Price: ...\n")

    assert shop.check() == ["shop/prices.py:1: class Price"]


def test_a_protocol_in_an_annotation_is_live_without_the_methods_that_nothing_calls(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        class Price(Protocol):
            def amount(self): ...
            def tax(self): ...

        def sell(price: Price): return price.amount()
        """,
    )

    assert shop.check() == ["shop/orders.py:4: method Price.tax"]


def test_a_method_that_users_must_write_and_nothing_calls_is_found(shop: Shop):
    shop.write("shop/__init__.py", "from shop.orders import sell, Price\n\n__all__ = ['sell', 'Price']\n")
    shop.write(
        "shop/orders.py",
        """
        class Price(Protocol):
            def amount(self): ...
            def tax(self): ...

        def sell(price: Price) -> None: price.amount()
        """,
    )

    assert shop.check() == ["shop/orders.py:4: method Price.tax"]


def test_a_call_in_an_annotation_runs(shop: Shop):
    shop.write("shop/orders.py", "def price(): ...\n\ndef sell(price: Annotated[int, Depends(price)]): ...\n")

    assert shop.check() == []


def test_a_method_that_only_a_test_calls_is_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        class Order:
            def pay(self): ...
            def refund(self): ...

        def sell(): Order().pay()
        """,
    )
    shop.write("tests/test_orders.py", "from shop.orders import Order\n\nOrder().refund()\n")

    assert shop.check() == ["shop/orders.py:4: method Order.refund"]


def test_a_method_that_overrides_a_live_method_is_not_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        class Price(Protocol):
            def amount(self): ...

        class Fixed(Price):
            def amount(self): ...
            def tax(self): ...

        class Reduced(Fixed):
            def amount(self): ...

        def sell(): return _price().amount()
        def _price() -> Price: return Reduced()
        """,
    )

    assert shop.check() == ["shop/orders.py:7: method Fixed.tax"]


def test_a_method_that_another_library_may_call_is_not_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        from elsewhere import Thread

        class Worker(Thread):
            def run(self): ...

        class Stream:
            def read(self, size): ...
            def __len__(self): ...
            def _repr_html_(self): ...

        class Sold(Exception):
            def total(self): ...

        def sell(): return Worker(), Stream(), Sold()
        """,
    )

    assert shop.check() == ["shop/orders.py:13: method Sold.total"]


def test_an_attribute_by_name_is_a_use_of_the_method(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        class Order:
            def pay(self): ...

        def sell(): return getattr(Order(), "pay")()
        """,
    )

    assert shop.check() == []


def test_a_template_uses_methods(shop: Shop):
    shop.write("shop/orders.py", "class Order:\n    def total(self): ...\n\ndef sell(): return Order()\n")
    shop.write("shop/pages/order.html", "{{ order.total }}")

    assert shop.check() == []


def test_methods_of_a_public_class_and_of_what_it_returns_are_live_if_a_page_names_them(shop: Shop):
    shop.write("docs/use/orders.md", "Call `receipt()`, then `fold`, as in `Receipt().print()`; this is no refund.\n")
    shop.write("shop/__init__.py", "from shop.orders import Till\n\n__all__ = ['Till']\n")
    shop.write(
        "shop/orders.py",
        """
        class Receipt:
            def print(self): ...
            def refund(self): ...
            def _cut(self): ...

        class Paper(Receipt):
            def fold(self): ...

        class Till:
            def receipt(self) -> Receipt:
                return Paper()
        """,
    )

    assert shop.check() == [
        "shop/orders.py:4: method Receipt.refund",
        "shop/orders.py:5: method Receipt._cut",
    ]


def test_methods_of_a_class_that_users_do_not_get_are_found(shop: Shop):
    shop.write(
        "shop/orders.py",
        """
        class Paper:
            def fold(self): ...

        def sell() -> None: Paper()
        """,
    )

    assert shop.check() == ["shop/orders.py:3: method Paper.fold"]


@pytest.mark.parametrize("place", ["shop/cli/main.py", "shop/metadata/migrations/versions/first.py", "dags/example.py"])
def test_modules_that_airflow_loads_are_live(shop: Shop, place: str):
    shop.write("shop/orders.py", "def sell(): ...\n\n\ndef refund(): ...\n")
    shop.write(place, "from shop.orders import refund\n\ndef undo(): refund()\n")

    assert shop.check() == []


def test_an_entry_point_is_live(shop: Shop):
    shop.write("shop/orders.py", "def sell(): ...\n\n\ndef plugin(): ...\n")
    shop.write("pyproject.toml", "[project.entry-points.till]\nshop = 'shop.orders:plugin'\n")

    assert shop.check() == []


def test_a_definition_in_the_file_of_roots_is_live(shop: Shop):
    shop.write("shop/orders.py", "class Order:\n    def pay(self): ...\n\ndef sell(): ...\n\ndef refund(): ...\n")
    shop.write("README.md", "```python\norder.pay()\n```\n")

    assert shop.check(roots="# Orders\nshop.orders.Order\n\nshop.orders.refund  # undoes it\n") == []


@pytest.mark.parametrize("name", ["shop.orders.lost", "shop.lost.sell", "shop.orders", "sell", "shop.orders:sell"])
def test_a_root_that_names_no_definition_is_an_error(shop: Shop, name: str):
    shop.write("shop/orders.py", "def sell(): ...\n")

    assert shop.check(roots=f"# Orders\n{name}\n") == [
        f"roots.txt:2: expected the full name of a function or class, found {name}; correct it"
    ]


def test_relative_imports_and_cycles_of_reexports_end(shop: Shop):
    shop.write("shop/orders.py", "from .prices import price, lost\n\ndef sell(): return price() + lost()\n")
    shop.write("shop/prices/__init__.py", "from .net import price\nfrom ..orders import lost\n")
    shop.write("shop/prices/net.py", "def price(): ...\n\n\ndef tax(): ...\n")

    assert shop.check() == ["shop/prices/net.py:4: function tax"]


def test_a_missing_file_is_refused(shop: Shop, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--package", "shop", "--roots", "lost.txt"])

    assert "expected a file, found none at lost.txt" in capsys.readouterr().err


def test_a_folder_that_is_no_package_is_refused(shop: Shop, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--package", "lost"])

    assert "expected a file, found none at lost/__init__.py" in capsys.readouterr().err
