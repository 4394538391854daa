"""Reports as text: what they say, in which order, and that the user's text stays text."""

import dataclasses
import math
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from symcheck.findings import Finding, Verdict, Worst
from symcheck.report.text import HEADLINES, STYLES, render, render_plain, renderable

RIGHT = Finding("autograd", "w", Verdict.OK, "agrees", 0.0, 3.1e-8, 4.4e-7, 0.7, dtype="float32", compared=12)
WRONG = Finding(
    "formula",
    "w",
    Verdict.FORMULA,
    "the intended value and the exact gradient are disjoint balls",
    0.6172839451,
    3.1e-8,
    4.4e-7,
    5179042.0,
    Worst((0, 3), -0.61728397, -0.617283945, -1.2345678901),
    operation="aten.mul.Tensor at model.py:12",
    advice="2 * (...): the derivative of a square brings a factor 2",
    dtype="float32",
    shape=(3, 4),
    compared=12,
)
ROUNDED = dataclasses.replace(RIGHT, input="b", verdict=Verdict.ROUNDING, worst=Worst((), 1.00003, 1.0, 1.0))


def test_a_whole_report():
    assert render_plain("loss", [RIGHT, WRONG], ("the cotangent is 1",)) == (
        "Gradient of loss: 1 FORMULA, 1 OK\n"
        "\n"
        "                                formula  rounding     error\n"
        "  candidate  input     verdict    error     error   in ulps\n"
        "  autograd   w         OK          none   3.1e-08       0.7\n"
        "  formula    w         FORMULA    0.617   3.1e-08  5.18e+06\n"
        "\n"
        "note:  the cotangent is 1\n"
        "\n"
        "The formula for w is wrong: it is not the gradient of loss.\n"
        "  why:        the intended value and the exact gradient are disjoint balls\n"
        "  worst:      w[0, 3]   (of 12 compared, in float32)\n"
        "  exact:      -1.23456789\n"
        "  intended:   -0.617283945   (the formula in exact arithmetic)\n"
        "  computed:   -0.617283970   (5.18e+06 ulps from exact)\n"
        "  formula:    off by 0.617 at most\n"
        "  rounding:   3.1e-08 at most, within the bound 4.4e-07\n"
        "  operation:  aten.mul.Tensor at model.py:12\n"
        "  try:        2 * (...): the derivative of a square brings a factor 2"
    )


def test_nothing_checked_does_not_look_like_success():
    assert render_plain("loss", []) == "Gradient of loss: nothing was checked"


def test_the_worst_message_comes_first_and_what_is_right_has_none():
    text = render_plain("loss", [ROUNDED, RIGHT, WRONG])
    assert text.index("The formula for w is wrong") < text.index("Autograd's gradient by b is right: what differs")
    assert "Autograd's gradient by w" not in text


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_a_headline_and_a_colour(verdict):
    assert verdict in STYLES
    finding = dataclasses.replace(WRONG, verdict=verdict)
    headline = HEADLINES[verdict].format(subject="The formula for w", function="loss")
    assert (headline in render_plain("loss", [finding])) == (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("candidate", "subject"),
    [
        ("autograd", "Autograd's gradient by w"),
        ("finite differences", "The finite-difference gradient by w"),
        ("formula", "The formula for w"),
        ("my kernel", "The my kernel gradient by w"),
    ],
)
def test_every_candidate_has_a_subject(candidate, subject):
    assert f"{subject} could not be decided." in render_plain(
        "loss", [Finding(candidate, "w", Verdict.UNDECIDED, "no meaning for aten.fft")]
    )


def test_what_is_unknown_is_not_said():
    text = render_plain("loss", [Finding("autograd", "w", Verdict.UNDECIDED, "no meaning for aten.fft")])
    assert "  autograd   w         UNDECIDED        ?         ?        ?" in text
    assert text.endswith("could not be decided.\n  why:  no meaning for aten.fft")


@pytest.mark.parametrize(
    ("rounding", "bound", "said"),
    [
        (1e-8, 2e-8, "1e-08 at most, within the bound 2e-08"),
        (3e-8, 2e-8, "3e-08 at most; the bound at the worst element is 2e-08"),
        (3e-8, math.inf, "3e-08 at most; no bound is known"),
        (3e-8, math.nan, "3e-08 at most"),
        (math.inf, math.inf, "infinite; no bound is known"),
    ],
)
def test_rounding_is_within_a_bound_only_where_that_follows(rounding, bound, said):
    finding = dataclasses.replace(ROUNDED, rounding_error=rounding, bound=bound)
    assert f"  rounding:  {said}" in render_plain("loss", [finding]).splitlines()


def test_no_error_is_called_none_and_not_0():
    text = render_plain("loss", [dataclasses.replace(ROUNDED, rounding_error=0.0)])
    assert "  autograd   b         ROUNDING     none      none      0.7" in text
    assert "  formula:   no error found\n  rounding:  none" in text


def test_at_a_kink_another_slope_is_not_an_error():
    text = render_plain("loss", [dataclasses.replace(WRONG, verdict=Verdict.NONSMOOTH, formula_error=1.0)])
    assert "formula:    1 at most from the slope that the function as written has there" in text
    assert "off by" not in text


def test_rounding_beside_a_nan_is_that_of_the_other_values():
    nan = dataclasses.replace(
        WRONG, verdict=Verdict.INSTABILITY, worst=Worst((0,), math.nan, 1.0, 1.0), bound=math.inf, rounding_error=1e-8
    )
    text = render_plain("loss", [nan])
    assert "rounding:   1e-08 at most among the values that are finite; no bound is known" in text
    assert "INSTABILITY    0.617       nan  5.18e+06" in text


def test_an_operation_is_said_once():
    said = dataclasses.replace(WRONG, reason=f"it overflows; first at {WRONG.operation}")
    assert render_plain("loss", [said]).count(WRONG.operation) == 1


def test_an_exact_value_that_is_not_known_is_not_shown():
    text = render_plain("loss", [dataclasses.replace(WRONG, worst=Worst((0,), 1.0, 1.0, math.nan))])
    assert "exact:" not in text
    assert "computed:   1.0" in text


def test_finite_differences_come_last_as_they_judge_nothing():
    differences = Finding("finite differences", "w", Verdict.UNDECIDED, "one element is at a kink")
    text = render_plain("loss", [differences, ROUNDED])
    assert text.index("Autograd's gradient by b") < text.index("The finite-difference gradient by w")


def test_numbers_get_the_digits_that_tell_them_apart():
    exact = 1.0
    intended = 1.0 + 2**-50
    text = render_plain("loss", [dataclasses.replace(WRONG, worst=Worst((0,), -exact, intended, exact))])
    assert "  exact:       1.000000000000000\n" in text
    assert "  intended:    1.000000000000001 " in text
    assert "  computed:   -1.000000000000000 " in text


def test_a_computed_nan_is_shown():
    text = render_plain("loss", [dataclasses.replace(WRONG, worst=Worst((0,), math.nan, math.nan, math.inf))])
    assert "  exact:      inf\n" in text
    assert "  computed:   nan " in text
    assert "intended:" not in text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("[red]w[/red]", "[red]w[/red]"),
        ("[/]", "[/]"),
        ("w\x1b[31m", "w\\x1b[31m"),
        ("w\x07\x08\x7f\x9b2J", "w\\x07\\x08\\x7f\\x9b2J"),
        ("w\r\nOK", "w OK"),
        ("\u202ew\u2066", "\\u202ew\\u2066"),
        ("w\ud800", "w\\ud800"),
        (":smile:", ":smile:"),
        ("{subject}%s", "{subject}%s"),
    ],
)
def test_the_users_text_stays_text(hostile, shown):
    finding = dataclasses.replace(
        WRONG, input=hostile, reason=hostile, operation=f"{hostile}!", advice=hostile, dtype=hostile
    )
    for color in (False, True):
        text = render(hostile, [finding], (hostile,), color=color)
        assert f"Gradient of {shown}: " in text.replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert f"The formula for {shown} is wrong: it is not the gradient of {shown}." in text
        for unsafe in ("w\x1b", "\x07", "\r", "\x9b", "\u202e", "\ud800"):
            assert unsafe not in text
    plain = render_plain(hostile, [finding], (hostile,))
    for label, end in (("why:", ""), ("operation:", "!"), ("try:", "")):
        assert f"  {label:<10}  {shown}{end}" in plain.splitlines()
    assert f"note:  {shown}" in plain.splitlines()


def test_plain_text_has_no_colour_even_where_colour_is_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    text = render_plain("loss", [RIGHT, WRONG, ROUNDED])
    assert "\x1b" not in text
    assert "The formula for w is wrong: it is not the gradient of loss." in text.splitlines()
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_colour_only_adds_to_the_plain_text():
    colored = render("loss", [RIGHT, WRONG], color=True)
    assert "\x1b[1;31mFORMULA" in colored
    assert "\x1b[32mOK" in colored
    assert [line.rstrip() for line in Text.from_ansi(colored).plain.splitlines()] == render_plain(
        "loss", [RIGHT, WRONG]
    ).splitlines()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_numbers_are_never_cut(width):
    long_name = "encoder.layers.0.attention.query.weight"
    findings = [
        dataclasses.replace(RIGHT, candidate="finite differences", input=long_name, verdict=Verdict.INSTABILITY)
    ]
    findings.append(dataclasses.replace(WRONG, error_ulps=1.23e-300, formula_error=1.23e-300, rounding_error=1.23e300))
    text = render("loss", findings, width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "1.23e-300  1.23e+300  1.23e-300" in text


def test_a_console_prints_it_at_its_own_width():
    console = Console(file=StringIO(), width=70)
    console.print(renderable("loss", [RIGHT, WRONG]))
    assert max(map(len, console.file.getvalue().splitlines())) <= 70
