"""Where an infinity or NaN first came from: the program run in its own dtypes, statement by statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from symcheck.arithmetic.double import Double
from symcheck.evaluation import evaluate
from symcheck.program import Program, Statement

__all__ = ["first_nonfinite"]


def first_nonfinite(program: Program, given: Mapping[str, NDArray[np.generic]]) -> str:
    """The operator and source line of the first statement that gives an infinity or NaN from finite values.

    Args:
        program: a candidate's own; every result is rounded to the dtype that torch held it in.
        given: its inputs.

    Returns:
        Such as ``"aten.sqrt.default at model.py:12: r = x.sqrt()"``; "" where every value stays finite, or where an
        input is not.
    """
    wild: set[str] = {name for name, value in given.items() if not _is_finite(value)}
    wild |= {array.name for array, value in program.constants.items() if not _is_finite(value)}
    found: list[Statement] = []

    def watch(statement: Statement, value: Any) -> Any:
        if statement.out.is_real:
            value = _rounded(value, statement.out.dtype)
            if not _is_finite(value):
                if not found and not any(array.name in wild for array in statement.arrays):
                    found.append(statement)
                wild.add(statement.out.name)
        return value

    evaluate(program, given, Double(), visit=watch)
    return describe_statement(found[0]) if found else ""


def describe_statement(statement: Statement) -> str:
    """The operator and the source line of a statement."""
    return " at ".join(part for part in (statement.operator, statement.source) if part)


def _is_finite(value: NDArray[Any]) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def _rounded(value: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "float64":
        return value
    return np.asarray(torch.from_numpy(np.array(value)).to(getattr(torch, dtype)).to(torch.float64).numpy())
