"""Compiling scalar bodies with lambdify, once for each number system.

The printed code calls only names of a namespace (`exp`, `power`, `piecewise`, `less`, `rational` ...), so one printer
serves every number system; each supplies those names for its own kind of array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy as sp
from sympy.printing.pycode import PythonCodePrinter

from symcheck.errors import UnknownOperator
from symcheck.functions import constant_symbol, read_symbol

__all__ = ["Namespace", "compile_body"]

Namespace = Mapping[str, Callable[..., Any] | object]

_RELATIONS = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "unequal"}


class _BodyPrinter(PythonCodePrinter):  # type: ignore[misc]
    def _print_Rational(self, expr: Any) -> str:
        # A printed quotient of Python ints would be a float64, and cap every number system at 53 bits.
        return f"rational({expr.p}, {expr.q})"

    _print_Half = _print_Rational

    def _print_Integer(self, expr: Any) -> str:
        return str(int(expr))

    _print_Zero = _print_One = _print_NegativeOne = _print_Integer

    def _print_Float(self, expr: Any) -> str:
        raise TypeError(f"the body holds the inexact number {expr}: constants are passed as arguments")

    def _print_Mul(self, expr: Any) -> str:
        # A quotient is a name of its own, so that each number system says what division by zero gives.
        below = [part for part in expr.args if part.is_Pow and part.exp.is_Rational and part.exp < 0]
        if not below or len(below) == len(expr.args):
            return str(super()._print_Mul(expr)) if not below else " * ".join(self._factor(part) for part in below)
        above = sp.Mul(*(part for part in expr.args if part not in below))
        return f"divide({self._print(above)}, {self._print(sp.Mul(*(1 / part for part in below)))})"

    def _factor(self, expr: Any) -> str:
        return f"({self._print(expr)})"

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:
        base = self._print(expr.base)
        if expr.exp == sp.S.Half:
            return f"sqrt({base})"
        if expr.exp == -sp.S.Half:
            return f"rsqrt({base})"
        if expr.exp == -1:
            return f"reciprocal({base})"
        return f"power({base}, {self._print(expr.exp)})"

    def _print_Piecewise(self, expr: Any) -> str:
        branches = ", ".join(f"({self._print(value)}, {self._print(condition)})" for value, condition in expr.args)
        return f"piecewise({branches})"

    def _print_Relational(self, expr: Any) -> str:
        return f"{_RELATIONS[expr.rel_op]}({self._print(expr.lhs)}, {self._print(expr.rhs)})"

    def _print_And(self, expr: Any) -> str:
        return f"both({', '.join(map(self._print, expr.args))})"

    def _print_Or(self, expr: Any) -> str:
        return f"either({', '.join(map(self._print, expr.args))})"

    def _print_Not(self, expr: Any) -> str:
        return f"negate({self._print(expr.args[0])})"

    def _print_BooleanTrue(self, expr: Any) -> str:
        return "True"

    def _print_BooleanFalse(self, expr: Any) -> str:
        return "False"

    def _print_NumberSymbol(self, expr: Any) -> str:
        return f"constant_{expr.func.__name__}()"

    _print_Pi = _print_Exp1 = _print_EulerGamma = _print_Catalan = _print_GoldenRatio = _print_NumberSymbol

    def _print_Infinity(self, expr: Any) -> str:
        return "infinity()"

    def _print_NegativeInfinity(self, expr: Any) -> str:
        return "-infinity()"

    def _print_NaN(self, expr: Any) -> str:
        return "undefined()"

    def _print_Function(self, expr: Any) -> str:
        return f"{expr.func.__name__}({', '.join(map(self._print, expr.args))})"

    _print_Abs = _print_Max = _print_Min = _print_sign = _print_Function
    _print_floor = _print_ceiling = _print_Mod = _print_Function
    _print_exp = _print_Function
    _print_ExpBase = _print_loggamma = _print_Function


_COMPILED: dict[tuple[int, sp.Expr, int, int], Callable[..., Any]] = {}


def compile_body(body: sp.Expr, reads: int, constants: int, namespace: Namespace) -> Callable[..., Any]:
    """The body as a Python function of its reads, then its constants; remembered for each namespace.

    Raises:
        UnknownOperator: the namespace lacks a function that the body needs.
    """
    key = (id(namespace), body, reads, constants)
    if key not in _COMPILED:
        missing = {f.func.__name__ for f in body.atoms(sp.Function)} - set(namespace) - {"Piecewise"}
        if missing:
            raise UnknownOperator(", ".join(sorted(missing)), detail="this number system cannot evaluate it")
        symbols = [*map(read_symbol, range(reads)), *map(constant_symbol, range(constants))]
        printer = _BodyPrinter({"fully_qualified_modules": False, "allow_unknown_functions": True})
        _COMPILED[key] = sp.lambdify(symbols, body, modules=[dict(namespace)], printer=printer, cse=True)
    return _COMPILED[key]
