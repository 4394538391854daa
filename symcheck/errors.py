"""Every exception that symcheck raises, and what each one means for the caller."""

from __future__ import annotations

__all__ = [
    "IllFormed",
    "Misuse",
    "NonDeterministic",
    "SymcheckError",
    "UnknownOperator",
    "Untraceable",
]


class SymcheckError(Exception):
    """Base of all errors raised by symcheck."""


class Misuse(SymcheckError, ValueError):
    """The call cannot mean anything: an unknown name, a shape that cannot be, a wrong type.

    The message says what was given, what is accepted, and what to do.
    """


class IllFormed(SymcheckError):
    """A statement or program that breaks the rules of its own type; a bug in a meaning, never the user's."""


class UnknownOperator(SymcheckError):
    """The traced function uses an operator that has no meaning in the table.

    Attributes:
        operator: its ATen name, such as ``aten._fft_c2c.default``.
        source: the user's source line that called it, or ``""``.
        detail: why there is no meaning, where that is known.
    """

    def __init__(self, operator: str, source: str = "", detail: str = "") -> None:
        self.operator, self.source, self.detail = operator, source, detail
        where = f" (called at {source})" if source else ""
        why = f": {detail}" if detail else ""
        super().__init__(f"no meaning for the operator {operator}{where}{why}")


class Untraceable(SymcheckError):
    """The function cannot be traced to a graph: data-dependent control flow, NumPy inside, an extension."""


class NonDeterministic(SymcheckError):
    """The function draws random numbers, so it is not a function of its inputs.

    Attributes:
        operator: the random operator, such as ``aten.bernoulli.p``.
    """

    def __init__(self, operator: str, source: str = "") -> None:
        self.operator, self.source = operator, source
        where = f" (called at {source})" if source else ""
        super().__init__(f"the random operator {operator}{where} makes the function nondeterministic")
