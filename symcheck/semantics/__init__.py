"""What each ATen operator means: importing this package fills the table from every family."""

from symcheck.semantics import contraction, elementwise, reduction, rearrangement  # noqa: F401  (they register)
from symcheck.semantics.table import TABLE, Meaning

__all__ = ["TABLE", "Meaning"]
