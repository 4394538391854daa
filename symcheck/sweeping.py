"""Checking one function at many inputs with one derivation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from symcheck.binding import bind, restored
from symcheck.checking import Report, bind_formulas
from symcheck.errors import Misuse
from symcheck.findings import Verdict
from symcheck.report.sweeps import render_sweep
from symcheck.session import Session

__all__ = ["Sweep", "sweep"]


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The reports of a sweep, by seed.

    Attributes:
        reports: one per seed, in order.
    """

    reports: Mapping[int, Report]

    @property
    def ok(self) -> bool:
        """Whether every report is ok."""
        return all(report.ok for report in self.reports.values())

    def count(self, candidate: str, name: str) -> Counter[Verdict]:
        """How often each verdict fell on a candidate by an input."""
        return Counter(report[candidate, name].verdict for report in self.reports.values())

    def largest(self, candidate: str, name: str, attribute: str) -> float:
        """The largest of a finding's numbers, such as ``rounding_error``, over the seeds."""
        return float(max(getattr(report[candidate, name], attribute) for report in self.reports.values()))

    def tolerance(self, candidate: str, name: str) -> float:
        """An absolute tolerance that a right candidate meets at every seed, whatever the order of its sums.

        The largest bound on its rounding over elements and seeds, in the gradient's own unit; use it with ``rtol=0``.
        It is inf where some seed has no bound, and nan where one was not computed.
        """
        return self.largest(candidate, name, "tolerance")

    def __str__(self) -> str:
        return render_sweep(self.reports)

    __repr__ = __str__


def sweep(
    function: Callable[..., Any],
    make_inputs: Callable[[int], Any],
    seeds: Iterable[int],
    formulas: Mapping[str, Any] | None = None,
    wrt: Collection[str] | str | None = None,
    *,
    cotangent: Any = None,
    budget: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Sweep:
    """Check a function at the inputs of many seeds; it is traced and derived once for each set of shapes and dtypes.

    Finite differences are taken at the first seed only: they check the function, which does not change.

    Args:
        function: as for `check`.
        make_inputs: gives the inputs of a seed, with the same names each time.
        seeds: what to give it.
        formulas: as for `check`.
        wrt: as for `check`.
        cotangent: as for `check`.
        budget: evaluations for the finite differences at the first seed.
        progress: called after each seed with that seed.

    Raises:
        Misuse: as `check`; or there are no seeds, or a seed gives other names than the first.
    """
    session: Session | None = None
    reports: dict[int, Report] = {}
    for seed in seeds:
        binding = bind(function, make_inputs(seed), wrt)
        if session is None:
            session = Session(binding, bind_formulas(formulas, binding), cotangent=cotangent)
        elif list(binding.inputs) != list(session.binding.inputs):
            raise Misuse(
                f"seed {seed} has the inputs {', '.join(binding.inputs)}; "
                f"the first had {', '.join(session.binding.inputs)}"
            )
        with restored(binding):
            outcome = session.run(binding.inputs, budget=0 if reports else budget)
        reports[seed] = Report.of(binding.name, outcome)
        if progress is not None:
            progress(seed)
    if not reports:
        raise Misuse("there are no seeds to sweep over; give some, such as range(1000)")
    return Sweep(reports)
