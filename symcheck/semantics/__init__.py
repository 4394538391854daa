"""What each ATen operator means: importing this package fills the table from every family."""

from symcheck.semantics import (  # noqa: F401  (they register)
    activation,
    alignment,
    comparison,
    contraction,
    convolution,
    elementwise,
    indexing,
    loss,
    max_pooling,
    normalisation,
    pooling,
    rearrangement,
    reduction,
    resampling,
    scattering,
    selection,
    special,
)
from symcheck.semantics.table import TABLE, Meaning

__all__ = ["TABLE", "Meaning"]
