"""From an ATen graph to a program: every operator is replaced by its meaning."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from symcheck.building import Builder
from symcheck.errors import IllFormed, NonDeterministic, SymcheckError, UnknownOperator, Untraceable
from symcheck.program import Array, Program
from symcheck.semantics import TABLE
from symcheck.uninitialised import ALLOCATIONS
from symcheck.widening import widen

__all__ = ["Lowering", "Traced", "has_meaning", "is_random", "lower", "source_line", "to_numpy"]

# views that start where their tensor's memory does
UNSHIFTED_VIEWS = frozenset({"view", "permute", "t", "transpose", "expand", "unsqueeze", "squeeze", "alias", "detach"})


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced function.

    Attributes:
        program: its real outputs first, then one discrete output for every value that Python code looked at.
        outputs: how many of the program's outputs are the function's.
        positions: which of the function's tensors they are.
        guards: the source lines where Python looked at a value, in the order of the outputs behind `outputs`.
    """

    program: Program
    outputs: int
    positions: tuple[int, ...]
    guards: tuple[str, ...]


def lower(graph: fx.GraphModule, names: list[str]) -> Traced:
    """The program of a graph whose placeholders are the named inputs, in order.

    Raises:
        UnknownOperator: an output depends on an operator without a meaning.
        NonDeterministic: an output depends on a random operator.
        Untraceable: Python code read the value of a real tensor.
    """
    return Lowering(graph, names).run()


def to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    """A tensor's values: float64 for real ones (exact for every narrower type), its own integer type otherwise."""
    plain = tensor.detach()
    if plain.is_floating_point():
        plain = plain.to(torch.float64)
    return np.array(plain.cpu().numpy())


def has_meaning(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and _meaning_name(target) is not None


def _meaning_name(target: Any) -> str | None:
    full = str(target)
    packet = full.rpartition(".")[0]
    return full if full in TABLE else packet if packet in TABLE else None


def is_random(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def source_line(node: fx.Node) -> str:
    """`file.py:12: code` of the user's line that a node came from, or ""."""
    lines = [line.strip() for line in (node.stack_trace or "").strip().splitlines()]
    if not lines or '"' not in lines[0]:
        return ""
    path = lines[0].split('"')[1]
    number = lines[0].partition("line ")[2].partition(",")[0]
    code = f": {lines[1]}" if len(lines) > 1 else ""
    return f"{Path(path).name}:{number}{code}"


@dataclass(slots=True)
class _Missing:
    """The result of an operator that has no meaning: an error only if an output needs it."""

    error: SymcheckError


@dataclass(slots=True)
class _Folded:
    """A tensor that depends on no input: integers and creation results, computed by torch itself."""

    tensor: Any
    array: Array | None = field(default=None)


class Lowering:
    """One walk over a graph, appending each operator's meaning."""

    def __init__(self, module: fx.GraphModule, names: list[str]) -> None:
        self.module, self.names = module, names
        self.builder = Builder()
        self.values: dict[fx.Node, Any] = {}

    def run(self) -> Traced:
        names = iter(self.names)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node, next(names))
            elif node.op == "get_attr":
                self.values[node] = _Folded(_attribute(self.module, str(node.target)))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            else:
                assert node.op == "output", node.op
                return self._finish(node)
        raise IllFormed("a graph without an output")

    def _placeholder(self, node: fx.Node, name: str) -> Any:
        shape, dtype = _meta(node)[0]
        if dtype.startswith("complex"):
            self.builder.input(name, shape, "float64")  # keeps the inputs aligned; nothing may read it
            return _Missing(UnknownOperator("complex input", detail=f"{name} is complex"))
        return self.builder.input(name, shape, dtype)

    def _finish(self, node: fx.Node) -> Traced:
        outputs = node.args[0]
        assert isinstance(outputs, tuple | list)
        nodes = [out if isinstance(out, fx.Node) else None for out in outputs]
        kept = [node if node is not None and not _is_complex(node) else None for node in nodes]
        results = [None if node is None else self.values.get(node) for node in (kept if any(kept) else nodes)]
        real = [(place, self._array(value)) for place, value in enumerate(results) if value is not None]
        chosen = [(place, array) for place, array in real if array.is_real]
        guards = self.builder.guards
        arrays = [array for _, array in chosen]
        program = self.builder.program([*arrays, *(array for array, _ in guards)])
        return Traced(program, len(arrays), tuple(place for place, _ in chosen), tuple(source for _, source in guards))

    def _array(self, value: Any) -> Array:
        """The program array of a value; folded ones become constants when first needed."""
        if isinstance(value, _Missing):
            raise value.error
        if isinstance(value, _Folded):
            if value.array is None:
                tensor = value.tensor
                dtype = str(tensor.dtype).removeprefix("torch.")
                if dtype.startswith("complex"):
                    raise UnknownOperator("complex constant", detail="complex numbers have no meaning yet")
                value.array = self.builder.constant(to_numpy(tensor), dtype)
            return value.array
        assert isinstance(value, Array), value
        return value

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, place = node.args
            held = self.values[source]  # type: ignore[index]
            if isinstance(held, _Missing):
                return held
            if isinstance(held, _Folded):
                return _Folded(held.tensor[place])
            return (
                held[place]
                if held[place] is not None
                else _Missing(UnknownOperator(f"{source}[{place}]", source_line(node), "this result has no meaning"))
            )
        if not isinstance(node.target, torch._ops.OpOverload):
            return _Missing(UnknownOperator(str(node.target), source_line(node)))
        if is_random(node.target) and not _random_is_harmless(node):
            return _Missing(NonDeterministic(str(node.target), source_line(node)))
        if torch.Tag.data_dependent_output in node.target.tags and not _meta(node):
            return self._guard(node)
        parents = [self.values[parent] for parent in node.all_input_nodes]
        for parent in parents:
            if isinstance(parent, _Missing):
                return parent
        if all(isinstance(parent, _Folded) for parent in parents) and self._may_fold(node, parents):
            return self._fold(node)
        return self._lower(node)

    def _guard(self, node: fx.Node) -> Any:
        """Python looked at a value: harmless for a truth value or integer that is decided strictly."""
        parents = [self.values[parent] for parent in node.all_input_nodes]
        if all(isinstance(parent, _Folded) for parent in parents):
            return None
        for parent in parents:
            if isinstance(parent, _Missing):
                return parent
            if isinstance(parent, _Folded) or not parent.is_real:
                self.builder.guards.append((self._array(parent), source_line(node)))
                continue
            where = f" at {source_line(node)}" if source_line(node) else ""
            raise Untraceable(f"Python code reads the value of a real tensor{where} ({node.target}), which freezes it")
        return None

    def _may_fold(self, node: fx.Node, parents: list[Any]) -> bool:
        assert isinstance(node.target, torch._ops.OpOverload)
        if _meaning_name(node.target) in ALLOCATIONS:
            return False
        if not parents:
            return True
        return all(not dtype.startswith(("float", "bfloat", "complex")) for _, dtype in _meta(node)) or str(
            node.target
        ).endswith(("_like.default", "lift_fresh_copy.default", "lift_fresh.default"))

    def _fold(self, node: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: self.values[n].tensor)
        with torch.no_grad():
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        return _Folded(result.clone() if isinstance(result, Tensor) else result)

    def _lower(self, node: fx.Node) -> Any:
        assert isinstance(node.target, torch._ops.OpOverload)
        name = _meaning_name(node.target)
        if name is None:
            return _Missing(UnknownOperator(str(node.target), source_line(node)))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self._argument)
        args, kwargs = _plain(args), _plain(kwargs)
        b = self.builder
        b.source, b.operator, b.results = source_line(node), str(node.target), _meta(node)
        b.layouts = tuple(map(_layout, node.all_input_nodes))
        if any(dtype.startswith("complex") for _, dtype in b.results):
            return _Missing(UnknownOperator(str(node.target), b.source, "complex numbers have no meaning yet"))
        start = len(b.statements)
        try:
            result = TABLE[name].lower(b, *args, **kwargs)
        except UnknownOperator as error:
            return _Missing(UnknownOperator(str(node.target), b.source, error.detail or error.operator))
        checked = self._checked(node, result, start)
        kernel = str(node.meta.get("original_aten") or node.target)  # what it was decomposed from
        if kernel != b.operator:
            b.statements[start:] = [replace(statement, operator=kernel) for statement in b.statements[start:]]
        return checked

    def _argument(self, node: fx.Node) -> Any:
        return self._array(self.values[node])

    def _checked(self, node: fx.Node, result: Any, start: int) -> Any:
        """The meaning's results, which must have the shapes that torch's had; its statements begin at `start`."""
        several = isinstance(result, tuple | list)
        arrays = list(result) if several else [result]
        for place, (array, (shape, dtype)) in enumerate(zip(arrays, self.builder.results, strict=False)):
            if array is None:
                continue
            if array.shape != shape or array.is_real != dtype.startswith(("float", "bfloat")):
                raise IllFormed(f"the meaning of {node.target} gives {array} where torch has {dtype}{list(shape)}")
            arrays[place] = self.builder.cast(array, dtype)
        arrays = widen(self.builder, start, arrays)
        return tuple(arrays) if several else arrays[0]


def _random_is_harmless(node: fx.Node) -> bool:
    """Whether this call draws nothing: in evaluation mode, or where the random result is for a backward pass only."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if str(node.target) == "aten._scaled_dot_product_flash_attention_for_cpu.default":
        return True
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    defaults = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    return any((defaults | given).get(name, True) is False for name in ("training", "train"))


def _attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else value


def _meta(node: fx.Node) -> tuple[tuple[tuple[int, ...], str], ...]:
    """The shape and dtype of every tensor that a node results in."""
    value = node.meta.get("val")
    values = list(value) if isinstance(value, tuple | list) else [value] if value is not None else []
    return tuple(
        (tuple(map(int, item.shape)), str(item.dtype).removeprefix("torch."))
        if isinstance(item, Tensor)
        else ((), "int64")
        for item in values
    )


def _layout(node: fx.Node) -> tuple[tuple[int, ...], bool]:
    value = node.meta.get("val")
    strides = tuple(map(int, value.stride())) if isinstance(value, Tensor) else ()
    return strides, _starts_its_memory(node)


def _starts_its_memory(node: fx.Node) -> bool:
    """Whether a tensor's first element is the first of its memory; tracing does not record where a view starts."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is not operator.getitem
    returns = node.target._schema.returns
    if not returns or returns[0].alias_info is None:
        return True
    name = str(node.target).split(".")[1]
    source = node.args[0]
    return name in UNSHIFTED_VIEWS and isinstance(source, fx.Node) and _starts_its_memory(source)


def _is_complex(node: fx.Node) -> bool:
    return any(dtype.startswith("complex") for _, dtype in _meta(node))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value)) if not hasattr(value, "_fields") else tuple(map(_plain, value))
    if isinstance(value, dict | fx.immutable_collections.immutable_dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
