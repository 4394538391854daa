"""What a running bound charges for an operation: the format that it is computed in, and the one that holds results.

The reference computes in float64 by NumPy and SciPy. A candidate's kernels compute in their dtype, or in float32 where
that is narrower, and round what they return to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from symcheck.arithmetic.special import CONDITIONED, ULPS

__all__ = ["FLOAT64", "PRECISIONS", "REFERENCE", "Format", "Precision", "in_any_order", "working", "working_in"]


@dataclass(frozen=True, slots=True)
class Precision:
    """A binary floating-point type.

    Attributes:
        digits: bits of the significand, the leading one included.
        tiny: the smallest positive number; underflow is off by no more.
        largest: the largest finite number.
    """

    digits: int
    tiny: float
    largest: float

    @property
    def unit(self) -> float:
        """The unit roundoff."""
        return 2.0**-self.digits

    @property
    def normal(self) -> float:
        """The smallest number with all digits."""
        return self.tiny * 2.0 ** (self.digits - 1)


FLOAT64 = Precision(53, 5e-324, 1.7976931348623157e308)
PRECISIONS: Mapping[str, Precision] = {
    "float64": FLOAT64,
    "float32": Precision(24, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
    "float16": Precision(11, 2.0**-24, 65504.0),
    "bfloat16": Precision(8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
}


@dataclass(frozen=True, slots=True)
class Format:
    """How the statements under way are computed.

    Attributes:
        unit: the unit roundoff of one operation.
        tiny: how far an operation may be off by underflow.
        lost: likewise of an elementary function.
        held: the type that literals are cast to, and results rounded to.
        ulps: by function, how many ulps it may err by; of max(|f|, |x f'|) for those in `conditioned`, and of
            max(|f|, 1) for those in `absolute`.
        in_any_order: whether terms may be added, and factors multiplied out, in any order: a sum then rounds by the
            size of its terms, and not by its own.
    """

    unit: float = FLOAT64.unit
    tiny: float = FLOAT64.tiny
    lost: float = FLOAT64.tiny
    held: Precision = FLOAT64
    ulps: Mapping[str, float] = field(default_factory=lambda: ULPS)
    conditioned: frozenset[str] = CONDITIONED
    absolute: frozenset[str] = frozenset()
    in_any_order: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether operations are as uncertain as those that compute the bounds themselves."""
        return self.unit < 2.0**-40


REFERENCE = Format()
_WORKING: ContextVar[Format] = ContextVar("format", default=REFERENCE)


def working() -> Format:
    """The format that bounds are computed for at present: the reference's unless a block says otherwise."""
    return _WORKING.get()


@contextmanager
def working_in(form: Format) -> Iterator[None]:
    """Compute bounds for a format inside the block."""
    token = _WORKING.set(form)
    try:
        yield
    finally:
        _WORKING.reset(token)


def in_any_order(form: Format, factor: float) -> Format:
    """The format inside one kernel whose own order of operations is not known, erring by `factor` times as much."""
    return replace(form, unit=form.unit * factor, in_any_order=True)
