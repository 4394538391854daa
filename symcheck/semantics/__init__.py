"""What each ATen operator means: importing this package fills the table from every family."""

from symcheck.semantics import (  # noqa: F401  (they register)
    contraction,
    convolution,
    elementwise,
    normalisation,
    pooling,
    rearrangement,
    reduction,
)
from symcheck.semantics.table import TABLE, Meaning

__all__ = ["TABLE", "Meaning"]
