"""symcheck: exact checking of PyTorch gradients. Is the formula wrong, or is it only floating point?

The public names are loaded when first used, so that `import symcheck` imports neither torch nor SymPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symcheck.cases import Case
    from symcheck.checking import Report, assert_gradients, check
    from symcheck.findings import Finding, Verdict
    from symcheck.sweeping import sweep

__all__ = [
    "Case",
    "Finding",
    "Report",
    "Verdict",
    "__version__",
    "assert_gradients",
    "check",
    "sweep",
]

__version__ = "0.1.0"

_HOMES = {
    "Case": "symcheck.cases",
    "Finding": "symcheck.findings",
    "Report": "symcheck.checking",
    "Verdict": "symcheck.findings",
    "assert_gradients": "symcheck.checking",
    "check": "symcheck.checking",
    "sweep": "symcheck.sweeping",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
