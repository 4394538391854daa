"""Cases: what to check, as one object, and the Python files that define them for the command line and pytest."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from symcheck.checking import Report, check
from symcheck.errors import Misuse

__all__ = ["Case", "load_cases"]

# Names that a file is likely to use by mistake; each would silently leave something unchecked.
MISSPELLINGS = {
    "FORMULA": "formulas",
    "FORMULAS": "formulas",
    "formula": "formulas",
    "INPUTS": "inputs",
    "input": "inputs",
    "wrt": "WRT",
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One thing to check: a function, the point to check it at, and what claims to be its gradient.

    Attributes:
        function: what `symcheck.check` takes: a callable on tensors, `torch.nn.Module` included.
        inputs: ``{name: tensor}`` or a tuple in the function's order; or a callable without arguments that gives
            one, called anew at each check.
        formulas: ``{input: formula}``, or None to check only autograd.
        wrt: the inputs to differentiate by; None for all that can be.
        name: how the case is called in reports and on the command line.
        cotangent: the weights of a non-scalar output; None for random ones.

    Raises:
        Misuse: one of them is of a kind that can never be checked.
    """

    function: Callable[..., Any]
    inputs: Mapping[str, Any] | tuple[Any, ...] | Callable[[], Mapping[str, Any] | tuple[Any, ...]]
    formulas: Mapping[str, Any] | None = None
    wrt: Any = None
    name: str = ""
    cotangent: Any = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise Misuse(f"a case's function must be callable, not {_kind(self.function)}: give the function itself")
        if not (callable(self.inputs) or isinstance(self.inputs, Mapping | tuple)):
            raise Misuse(
                f"a case's inputs must be a dict by name, a tuple, or a function that gives one, not "
                f"{_kind(self.inputs)}: a single tensor x is given as (x,)"
            )
        if self.formulas is not None and not isinstance(self.formulas, Mapping):
            raise Misuse(
                f"a case's formulas must be a dict from input names to formulas, not {_kind(self.formulas)}: "
                f'write {{"w": formula}}'
            )

    def check(self, **options: Any) -> Report:
        """Check the case; `options` go to `symcheck.check`, and win over the case's own."""
        inputs = self.inputs() if callable(self.inputs) else self.inputs
        own = {"formulas": self.formulas, "wrt": self.wrt, "cotangent": self.cotangent}
        return check(self.function, inputs, **(own | options))


def load_cases(path: str | Path, name: str | None = None) -> list[Case]:
    """Load the cases that a Python file defines, in the file's order.

    A file is one case where it defines ``function`` and ``inputs`` (and perhaps ``formulas`` and ``WRT``); every
    `Case` at its top level, alone or in a list or tuple, is one more. A case without a name gets the name of its
    variable, and the file's own is named after the file. As with ``python FILE``, the file's folder comes first on
    ``sys.path``.

    Args:
        path: the file; it is run.
        name: the one case to give; None for all.

    Returns:
        At least one case, each with a name of its own.

    Raises:
        Misuse: the file is missing, fails to run, or defines nothing to check, or no case has that name.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise Misuse(f"{path} {what}: give a Python file that defines `function` and `inputs()`, or Cases")
    cases = list(_named(path, _found(path, _run(path))))
    if not cases:
        raise Misuse(
            f"{path} defines nothing to check: define `function` and `inputs()` (a dict of tensors by name), "
            f"or a symcheck.Case at the top level"
        )
    chosen = [case for case in cases if name in (None, case.name)]
    if not chosen:
        known = ", ".join(case.name for case in cases)
        raise Misuse(f"{path} has no case named {name!r}: it has {known}")
    return chosen


def _run(path: Path) -> ModuleType:
    """Run a file as a module of its own, and say where it failed if it does."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Registered, because dataclasses and annotations look their module up; named so that it can hide no other.
    module_name = "symcheck_case_" + re.sub(r"\W", "_", str(path.resolve()))
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} is not a Python file: its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise Misuse(f"{path} fails when it is run: {_located(error, path)}") from error
    return module


def _located(error: BaseException, path: Path) -> str:
    """Give an error's type and message, with the last of the file's lines that it passed."""
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, SyntaxError):
        return what  # says file and line itself
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    return f"{what}\n  at {path}:{lines[-1]}" if lines else what


def _found(path: Path, module: ModuleType) -> Iterable[Case]:
    """Yield the file's cases, named after their variables, each object once."""
    content = vars(module)
    if "function" in content and "inputs" in content:
        yield _own_case(path, content)
    seen: set[int] = set()
    for variable, value in content.items():
        many = isinstance(value, list | tuple)
        for position, case in enumerate(value if many else [value]):
            if isinstance(case, Case) and id(case) not in seen:
                seen.add(id(case))
                yield replace(case, name=case.name or (f"{variable}[{position}]" if many else variable))
    if "function" in content and "inputs" not in content and not seen:
        raise Misuse(f"{path} defines `function` but not `inputs`: define `inputs()`, giving a dict of tensors by name")


def _own_case(path: Path, content: Mapping[str, Any]) -> Case:
    for wrong, right in MISSPELLINGS.items():
        if wrong in content and right not in content:
            raise Misuse(f"{path} defines `{wrong}`, which is not read: call it `{right}`, or give it another name")
    return Case(content["function"], content["inputs"], content.get("formulas"), content.get("WRT"), path.stem)


def _named(path: Path, cases: Iterable[Case]) -> Iterable[Case]:
    names: set[str] = set()
    for case in cases:
        if case.name in names:
            raise Misuse(f"{path} has two cases named {case.name!r}: give each a name of its own")
        names.add(case.name)
        yield case


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
