"""The rooms of the package and their floors: a file imports only from lower floors (docs/design.md)."""

import ast
import fnmatch
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import symcheck

PACKAGE = Path(__file__).parent.parent / "symcheck"

# The first row that matches a room is its floor: rooms are files without .py, `*` within one folder. Half floors are
# mezzanines: rooms that stand between two floors of the design.
FLOORS = [
    ("errors", 1),
    ("steps", 1.2),
    ("definitions", 1.3),
    ("functions", 1.5),
    ("findings", 2),
    ("facts", 2.2),
    ("program", 2),
    ("building", 2.5),
    ("arithmetic/__init__", 3),  # empty, as every import of a number system runs it
    ("arithmetic/factoring", 3),
    ("arithmetic/layout", 3),
    ("binding", 3),
    ("semantics/table", 3),
    ("semantics/folding", 3.5),  # shared by the families: scans, trees, norms
    ("semantics/windows", 3.5),
    ("arithmetic/choices", 3.5),
    ("arithmetic/special", 3),
    ("arithmetic/enclosures", 3),
    ("arithmetic/formats", 3.2),
    ("arithmetic/kernels", 3.3),
    ("arithmetic/bounded", 3.5),
    ("arithmetic/decisions", 3.7),
    ("arithmetic/products", 3.7),
    ("arithmetic/double", 3.5),  # the other number systems fall back on it
    ("arithmetic/ties", 4.2),
    ("arithmetic/*", 4),
    ("branches", 4),
    ("derivation", 4),
    ("joining", 4),
    ("readings", 4),
    ("differences", 4),
    ("casts", 4),
    ("rewriting", 4),
    ("semantics/__init__", 5),
    ("semantics/*", 4),
    ("evaluation", 5),
    ("uninitialised", 5.25),
    ("lowering", 5.5),
    ("widening", 5.25),
    ("habits", 5.5),
    ("noise", 6),
    ("refinement", 6),
    ("openings", 6),
    ("mixtures", 6.2),
    ("slopes", 6.5),
    ("opposites", 6.7),
    ("kinks", 7),
    ("rounding", 6),
    ("blame", 6.5),
    ("reading", 6),
    ("selfcheck", 6),
    ("tracing", 6),
    ("writing", 6),
    ("precision", 6),
    ("candidates", 7),
    ("points", 7),
    ("stops", 7.5),
    ("reference", 7),
    ("neighbours", 7),
    ("separation", 7),
    ("limits", 7),
    ("sharing", 7),
    ("layouts", 7.2),
    ("reruns", 7.5),
    ("origins", 7),
    ("factors", 7),
    ("intended", 7.5),
    ("judgement", 8),
    ("conduct", 8),
    ("certification", 8.2),
    ("evidence", 8.3),
    ("confirmation", 8.4),
    ("certified", 8.5),
    ("estimates", 8.5),
    ("ladder", 8.5),
    ("trials", 8.7),
    ("diagnosis", 9),
    ("report/*", 10),
    ("differencing", 8.5),
    ("memory", 9),
    ("checks", 10),
    ("session", 10.5),
    ("checking", 11),
    ("cases", 12),
    ("closed_form", 12),
    ("dropin", 12),
    ("sweeping", 12),
    ("__init__", 13),
    ("pytest_plugin", 13),
    ("cli", 14),  # above `__init__`, for the version that it prints
]

# Folders whose files may import each other.
FAMILIES = ["report"]

# Third-party packages that only some rooms may import, by pattern; (pattern, floor) admits a floor and above.
RESERVED = {
    "torch": (["semantics/*", "binding", "lowering", "precision", "tracing"], 7),
    "flint": (["arithmetic/*"], None),
    "pytest": (["pytest_plugin"], None),
}


def rooms(package: Path) -> list[str]:
    return sorted(path.relative_to(package).with_suffix("").as_posix() for path in package.rglob("*.py"))


def floor_of(room: str) -> float | None:
    for pattern, floor in FLOORS:
        if matches(room, pattern):
            return floor
    return None


def matches(room: str, pattern: str) -> bool:
    return room.count("/") == pattern.count("/") and fnmatch.fnmatchcase(room, pattern)


def imported_names(package: Path, room: str) -> list[str]:
    """Every dotted name that a file imports, wherever in it the import stands."""
    tree = ast.parse((package / f"{room}.py").read_text(encoding="utf-8"))
    if room == "__init__":
        tree.body = [statement for statement in tree.body if not is_for_type_checkers(statement)]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(room, node)
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def is_for_type_checkers(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def absolute(room: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = ["symcheck", *room.split("/")][: -node.level]
    return ".".join([*parents, *([node.module] if node.module else [])])


def imported_rooms(package: Path, room: str) -> list[str]:
    """The rooms of the package that a file imports: `symcheck.a.b` is a/b, or a name in a, or in a/__init__."""
    found = []
    known = set(rooms(package))
    for name in imported_names(package, room):
        first, *rest = name.split(".")
        if first != "symcheck":
            continue
        spellings = [
            "/".join(rest),
            "/".join([*rest, "__init__"]),
            "/".join(rest[:-1]),
            "/".join([*rest[:-1], "__init__"]),
        ]
        found.append(next((spelling for spelling in spellings if spelling in known), name))
    return found


def upward_imports(package: Path) -> list[str]:
    faults = []
    for room in rooms(package):
        floor = floor_of(room) or 0
        for other in imported_rooms(package, room):
            same_family = any(room.startswith(f"{family}/") and other.startswith(f"{family}/") for family in FAMILIES)
            other_floor = floor_of(other)
            if other_floor is None or (other_floor >= floor and not same_family):
                faults.append(f"{room} (floor {floor}) imports {other} (floor {other_floor})")
    return faults


def misplaced_third_parties(package: Path) -> list[str]:
    faults = []
    for room in rooms(package):
        for name in {name.split(".")[0] for name in imported_names(package, room)} & RESERVED.keys():
            patterns, from_floor = RESERVED[name]
            admitted = any(matches(room, pattern) for pattern in patterns)
            if not admitted and (from_floor is None or (floor_of(room) or 0) < from_floor):
                faults.append(f"{room} imports {name}")
    return faults


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(PACKAGE, tmp_path / "symcheck", ignore=shutil.ignore_patterns("__pycache__")))


def test_every_room_has_a_floor():
    assert [room for room in rooms(PACKAGE) if floor_of(room) is None] == []


def test_files_import_only_from_lower_floors():
    assert upward_imports(PACKAGE) == []


def test_third_parties_stay_in_their_rooms():
    assert misplaced_third_parties(PACKAGE) == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("errors", "from symcheck.checking import check"),
        ("errors", "import symcheck.checking"),
        ("errors", "from symcheck import findings"),
        ("program", "from symcheck.findings import Verdict"),  # the same floor
        ("program", "from .cases import Case"),
        ("report/text", "from symcheck import cases"),
        ("report/data", "from ..cases import Case"),
        ("findings", "def late():\n    from symcheck.report.text import render"),
        ("findings", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from symcheck.report import text"),
        ("cases", "import symcheck"),
        ("errors", "from symcheck.nowhere import anything"),
    ],
)
def test_a_planted_upward_import_is_found(copy, room, line):
    before = upward_imports(copy)
    with (copy / f"{room}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    planted = [fault for fault in upward_imports(copy) if fault not in before]
    assert len(planted) == 1
    assert planted[0].startswith(f"{room} ")


def test_a_family_may_import_its_own(copy):
    with (copy / "report/data.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom symcheck.report.text import render\n")
    assert upward_imports(copy) == upward_imports(PACKAGE)


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("program", "import torch"),
        ("errors", "from torch.fx import Graph"),
        ("checking", "import pytest"),
        ("cases", "def late():\n    import flint"),
    ],
)
def test_a_planted_third_party_is_found(copy, room, line):
    with (copy / f"{room}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    assert [fault.split()[0] for fault in misplaced_third_parties(copy)] == [room]


def test_a_room_without_a_floor_is_found(copy):
    (copy / "utils.py").write_text("")
    assert [room for room in rooms(copy) if floor_of(room) is None] == ["utils"]


@pytest.mark.parametrize("module", ["symcheck", "symcheck.cli", "symcheck.findings"])
def test_importing_is_light(module):
    code = f"import sys, {module}; print(*{{'torch', 'sympy', 'numpy', 'scipy', 'flint', 'rich'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", [name for name in symcheck.__all__ if name != "__version__"])
def test_every_public_name_is_what_its_module_calls_it(name):
    value = getattr(symcheck, name)
    assert value.__name__ == name
    assert value.__module__ == symcheck._HOMES[name]
    assert name in dir(symcheck)


def test_no_public_name_is_a_modules():
    for room in rooms(PACKAGE):
        assert room.split("/")[0] not in symcheck.__all__


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        importlib.import_module("symcheck").chekc  # noqa: B018
