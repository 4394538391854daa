"""The documented coverage follows from the table of meanings."""

from __future__ import annotations

from benchmarks.coverage import PAGE, SEPARATOR, outcomes_section, table_section
from benchmarks.opinfo import Operator, Sample
from symcheck.semantics import TABLE


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(SEPARATOR)[0] == table_section(TABLE), "run `python -m benchmarks.coverage`"
    assert SEPARATOR in page, "run `python -m benchmarks.coverage --opinfo FILE`"


def test_a_row_more_is_noticed() -> None:
    more = {**TABLE, "aten.planted": next(iter(TABLE.values()))}
    assert table_section(more) != table_section(TABLE)


def test_outcomes_name_what_is_not_decided() -> None:
    operators = [
        Operator("good", (Sample("good[0]", "compared"),)),
        Operator("drawn", (Sample("drawn[0]", "random", "aten.bernoulli"),)),
        Operator("bad", (Sample("bad[0]", "undecided", "no meaning for a|b"),)),
        Operator("odd", (Sample("odd[0]", "disagreement", "off"),)),
    ]
    text = outcomes_section(operators)
    assert "Of the 4 operators" in text
    assert "2 are decided" in text
    assert r"| `bad` | no meaning for a\|b |" in text
    assert "| `odd` | unexplained |" in text
    assert "Random: `drawn`." in text
    assert "Decided: `good`." in text
