"""Ill-formed statements and programs cannot be built."""

import numpy as np
import pytest
import sympy as sp

from symcheck.errors import IllFormed
from symcheck.functions import constant_symbol, read_symbol
from symcheck.program import Array, Equation, Gather, Inversion, Program, Read, Reshape, Scatter, Selection

X = Array("x", (2, 3), "float64")
ROW = Array("row", (1, 3), "float64")
OUT = Array("out", (2,), "float64")
WHERE = Array("where", (2,), "int64")
R0, R1, C0 = read_symbol(0), read_symbol(1), constant_symbol(0)
TOTAL = Equation(OUT, (2, 3), 2 * R0 * C0, (Read(X, (0, 1)),), (3,))

ILL_FORMED = {
    "an unknown dtype": lambda: Array("z", (2,), "complex128"),
    "sizes that are not the result's": lambda: Equation(OUT, (3, 3), R0, (Read(ROW, (None, 1)),)),
    "a read of another size": lambda: Equation(OUT, (2, 2), R0, (Read(X, (0, 1)),)),
    "a read with an axis too few": lambda: Equation(OUT, (2, 3), R0, (Read(X, (0,)),)),
    "a read that repeats an axis": lambda: Equation(OUT, (2,), R0, (Read(Array("s", (2, 2), "float64"), (0, 0)),)),
    "index 0 of an axis that is not 1": lambda: Equation(OUT, (2, 3), R0, (Read(X, (None, 1)),)),
    "a symbol of no read": lambda: Equation(OUT, (2, 3), R0 * R1, (Read(X, (0, 1)),)),
    "a symbol of no constant": lambda: Equation(OUT, (2, 3), R0 * C0, (Read(X, (0, 1)),)),
    "a symbol from elsewhere": lambda: Equation(OUT, (2, 3), R0 * sp.Symbol("n"), (Read(X, (0, 1)),)),
    "a reshape to another size": lambda: Reshape(OUT, X),
    "a gather by too many positions": lambda: Gather(Array("g", (3,), "float64"), (X,), WHERE),
    "a gather by real positions": lambda: Gather(OUT, (X,), Array("w", (2,), "float64")),
    "a gather of mixed kinds": lambda: Gather(OUT, (X, WHERE), WHERE),
    "a scatter by too few positions": lambda: Scatter(OUT, X, WHERE),
    "a selection by an unknown rule": lambda: Selection(WHERE, X, "median"),
    "a selection of another shape": lambda: Selection(WHERE, X, "argsort"),
    "a real selection": lambda: Selection(OUT, X, "argmax"),
    "an inversion of real positions": lambda: Inversion(WHERE, OUT),
    "an array defined twice": lambda: Program((X, X), {}, (), (X,)),
    "a result that is an input": lambda: Program((X, OUT), {}, (TOTAL,), (OUT,)),
    "a read before the definition": lambda: Program((), {}, (TOTAL,), (OUT,)),
    "a read of another shape": lambda: Program((Array("x", (2, 4), "float64"),), {}, (TOTAL,), (OUT,)),
    "an unknown output": lambda: Program((X,), {}, (), (OUT,)),
}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_it_cannot_be_built(name):
    with pytest.raises(IllFormed):
        ILL_FORMED[name]()


def test_a_program_prints_one_line_a_statement():
    program = Program(
        (X,), {WHERE: np.zeros(2, dtype=np.int64)}, (TOTAL, Gather(Array("g", (2,), "float64"), (OUT,), WHERE)), (OUT,)
    )
    assert str(program).splitlines() == [
        "inputs: x: float64[2, 3]",
        "constants: where: int64[2]",
        "out[i] = sum over j of 2*3*x[i, j]",
        "g = gather (out) at where",
        "outputs: out",
    ]


def test_data_are_frozen():
    with pytest.raises(AttributeError):
        TOTAL.sizes = (2, 4)
