"""The examples say what their text says that they do."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_an_error_that_gradcheck_passes_is_proved_and_an_instability_is_no_wrong_formula(capsys):
    example = runpy.run_path(str(EXAMPLES / "attention_certified.py"))
    assert example["main"]() == 0
    right, slipped, moderate, large = capsys.readouterr().out.splitlines()[1:]
    assert right.split()[:3] == ["right", "passes", "OK:"]
    assert "passes      FORMULA: by q, 20 of 24 elements are wrong, by the factor (1 + 1e-12) everywhere" in slipped
    assert "passes      OK:" in moderate
    assert "fails       INSTABILITY: by x" in large
    assert "first at aten.exp.default at attention_certified.py" in large
