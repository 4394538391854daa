"""Findings as plain data: JSON takes it as it is, and gives it back."""

import dataclasses
import json
import math

import numpy as np

from symcheck.findings import Finding, Verdict, Worst
from symcheck.report.data import to_dict

WRONG = Finding(
    "formula",
    "w",
    Verdict.FORMULA,
    "disjoint balls",
    formula_error=0.5,
    rounding_error=math.inf,
    worst=Worst((0, 3), math.nan, 1 / 3, -0.0),
    advice="a factor 2",
    dtype="float32",
    shape=(1, 4),
    compared=4,
)
RIGHT = Finding("autograd", "w", Verdict.OK, "agrees", 0.0, 1e-8, 2e-8, 0.5)


def test_every_attribute_is_there():
    (finding,) = to_dict("loss", [WRONG])["findings"]
    assert finding.keys() == {field.name for field in dataclasses.fields(Finding)}
    assert finding["worst"].keys() == {field.name for field in dataclasses.fields(Worst)}
    assert (finding["verdict"], finding["input"], finding["shape"]) == ("FORMULA", "w", [1, 4])


def test_json_gives_back_the_same_data():
    data = to_dict("loss", [WRONG, RIGHT], ("a note",))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["function"], data["notes"]) == ("loss", ["a note"])


def test_numbers_that_json_lacks_are_strings_that_float_reads():
    (finding,) = to_dict("loss", [WRONG])["findings"]
    assert (finding["rounding_error"], finding["bound"], finding["error_ulps"]) == ("inf", "inf", "nan")
    worst = finding["worst"]
    assert math.isnan(float(worst["computed"]))
    assert worst["intended"] == 1 / 3
    assert math.copysign(1, worst["exact"]) == -1


def test_numpy_scalars_become_numbers():
    finding = dataclasses.replace(RIGHT, formula_error=np.float64(0.25), bound=np.float32("inf"))
    (given,) = to_dict("loss", [finding])["findings"]
    assert (type(given["formula_error"]), given["bound"]) == (float, "inf")


def test_verdicts_are_counted_worst_first():
    verdicts = to_dict("loss", [RIGHT, WRONG, RIGHT])["verdicts"]
    assert list(verdicts.items()) == [("FORMULA", 1), ("OK", 2)]
    assert to_dict("loss", []) == {"function": "loss", "verdicts": {}, "findings": [], "notes": []}
