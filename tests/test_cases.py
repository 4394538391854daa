"""Cases, and the files that define them."""

import sys

import pytest
import torch

from symcheck.cases import Case, load_cases
from symcheck.errors import Misuse
from symcheck.findings import Verdict

ONE = """\
import torch

def function(w):
    return (w * w).sum()

def inputs():
    return {"w": torch.tensor([1.0, -2.0, 0.5])}

formulas = {"w": lambda w: 2 * w}
"""

SEVERAL = """\
import torch
from symcheck import Case

def square(w):
    return (w * w).sum()

POINT = (torch.tensor([1.0, -2.0]),)
right = Case(square, POINT, formulas={"w": lambda w: 2 * w})
wrong = alias = Case(square, POINT, formulas={"w": lambda w: w}, name="half")
TABLE = [Case(square, POINT), Case(square, POINT, name="last")]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text, name="losses.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def square(w):
    return (w * w).sum()


def test_a_file_with_a_function_is_one_case_named_after_it(write):
    (case,) = load_cases(write(ONE + 'WRT = ("w",)\n'))
    assert (case.name, case.wrt) == ("losses", ("w",))
    assert case.formulas.keys() == {"w"}
    assert case.inputs()["w"].shape == (3,)


def test_cases_are_found_once_each_in_the_files_order(write):
    cases = load_cases(write(SEVERAL))
    assert [case.name for case in cases] == ["right", "half", "TABLE[0]", "last"]


def test_a_file_may_have_both(write):
    assert [case.name for case in load_cases(write(SEVERAL + ONE))] == ["losses", "right", "half", "TABLE[0]", "last"]


@pytest.mark.parametrize("name", ["right", "half", "TABLE[0]", "last"])
def test_one_case_is_chosen_by_name(write, name):
    assert [case.name for case in load_cases(write(SEVERAL), name)] == [name]


def test_a_file_may_import_its_neighbour_and_define_dataclasses(write):
    write("FACTOR = 2.0\n", "neighbour_of_losses.py")
    (case,) = load_cases(
        write(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "from neighbour_of_losses import FACTOR\n@dataclass\nclass Thing:\n    x: int\n" + ONE
        )
    )
    assert case.name == "losses"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines nothing to check: define `function` and `inputs()`"),
        ("x = 1\n", "defines nothing to check"),
        ("def function(w): return w\n", "defines `function` but not `inputs`"),
        (ONE.replace("formulas", "FORMULAS"), "defines `FORMULAS`, which is not read: call it `formulas`"),
        (ONE + "wrt = ['w']\n", "defines `wrt`, which is not read: call it `WRT`"),
        (ONE.replace("formulas = {", "formulas = [{") + "]", "must be a dict from input names to formulas, not a list"),
        (SEVERAL + "right = Case(square, POINT, name='half')\n", "has two cases named 'half'"),
        ("x = 1\ny = x / 0\n", r"(?s)fails when it is run: ZeroDivisionError: division by zero.*losses\.py:2"),
        ("def f():\n    1 / 0\n\nf()\n", r"losses\.py:2"),
        ("def f(:\n", r"(?s)losses\.py.*line 1.*SyntaxError"),
        ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("raise SystemExit(0)\n", "fails when it is run: SystemExit: 0"),
    ],
)
def test_a_file_without_a_meaning_is_misuse(write, text, message):
    with pytest.raises(Misuse, match=message.replace("()", r"\(\)")):
        load_cases(write(text))


def test_a_helper_with_a_suspect_name_is_no_misuse_where_the_right_name_is_there(write):
    assert len(load_cases(write(ONE + "def formula(w): return 2 * w\n"))) == 1


def test_an_error_in_the_file_is_the_cause(write):
    modules = set(sys.modules)
    with pytest.raises(Misuse) as caught:
        load_cases(write("1 / 0\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert set(sys.modules) == modules


def test_an_unknown_name_says_which_there_are(write):
    with pytest.raises(Misuse, match=r"no case named 'rihgt': it has right, half, TABLE\[0\], last"):
        load_cases(write(SEVERAL), "rihgt")


def test_a_missing_file_a_folder_and_another_kind_of_file(write, tmp_path):
    with pytest.raises(Misuse, match=r"nowhere\.py does not exist"):
        load_cases(tmp_path / "nowhere.py")
    with pytest.raises(Misuse, match="is a folder"):
        load_cases(tmp_path)
    with pytest.raises(Misuse, match="is not a Python file"):
        load_cases(write(ONE, "losses.txt"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("square", {}), "function must be callable, not a str"),
        ((square, torch.ones(2)), r"not a Tensor: a single tensor x is given as \(x,\)"),
        ((square, [torch.ones(2)]), "not a list"),
        ((square, (torch.ones(2),), [square]), "must be a dict from input names to formulas, not a list"),
    ],
)
def test_a_case_that_can_mean_nothing_is_not_built(arguments, message):
    with pytest.raises(Misuse, match=message):
        Case(*arguments)


def test_a_right_case_is_ok_and_a_slightly_wrong_one_is_not():
    point = {"w": torch.tensor([1.0, -2.0, 0.5])}
    right = Case(square, point, formulas={"w": lambda w: 2 * w}).check()
    assert right.ok
    assert {finding.candidate for finding in right.findings} >= {"autograd", "formula"}
    wrong = Case(square, lambda: point, formulas={"w": lambda w: 2.000001 * w}).check()
    assert not wrong.ok
    assert [finding.verdict for finding in wrong.findings if finding.candidate == "formula"] == [Verdict.FORMULA]


def test_wrt_and_cotangent_reach_the_check():
    def weigh(w, v):
        return w * v

    ones = torch.ones(2)
    point = {"w": torch.tensor([1.0, 2.0]), "v": torch.tensor([3.0, -4.0])}
    case = Case(weigh, point, formulas={"w": lambda w, v: v}, wrt=["w"], cotangent=ones)
    report = case.check()
    assert report.ok
    assert {finding.input for finding in report.findings} == {"w"}
    assert not case.check(cotangent=3 * ones, formulas={"w": lambda w, v, cotangent: v}).ok
