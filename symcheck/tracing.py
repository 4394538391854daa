"""From a torch callable to an ATen graph, and on to a program.

All private interfaces of torch that symcheck needs are used in this file only.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, decomposition_table, get_decompositions
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import proxy_tensor

from symcheck.errors import NonDeterministic, SymcheckError, Untraceable
from symcheck.lowering import Lowering, Traced, has_meaning, is_random, to_numpy
from symcheck.program import Program
from symcheck.uninitialised import reaches_output

__all__ = ["Backward", "trace", "trace_backward", "trace_graph"]

Call = Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]

# operators beyond the core table that torch's own decompositions state in operators that have a meaning
EXTRA_DECOMPOSITIONS: tuple[Any, ...] = (torch.ops.aten.batch_norm_backward,)

_SYMCHECK = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


def trace(call: Call, tensors: Mapping[str, Tensor]) -> Traced:
    """Trace a function of named tensors at their dtypes and shapes.

    Args:
        call: as in `Binding`.
        tensors: one per input; they are cloned, so that the same tensor passed twice stays apart.

    Raises:
        UnknownOperator: an output depends on an operator without a meaning.
        NonDeterministic: an output depends on a random operator.
        Untraceable: Python code needs the value of a real tensor, or torch cannot trace the function.
        Exception: whatever the function itself raises on these inputs.
    """
    graph = trace_graph(call, tensors)
    lowering = Lowering(graph, list(tensors))
    traced = lowering.run()
    if reaches_output(traced.program, lowering.builder.unset, {name: to_numpy(x) for name, x in tensors.items()}):
        raise NonDeterministic("torch.empty")
    return traced


@dataclass(frozen=True, slots=True)
class Backward:
    """Autograd's backward as a program.

    Attributes:
        program: its inputs are the function's, then one cotangent per output, ``d_cotangent0`` ...; its outputs the
            gradients in the order of `wrt`.
        missing: the names by which autograd returned None; their gradients are zeros.
        guards: the source lines where Python looked at a value; the program holds where it sees the same.
    """

    program: Program
    missing: frozenset[str]
    guards: tuple[str, ...]


def trace_backward(
    call: Call,
    tensors: Mapping[str, Tensor],
    wrt: Sequence[str],
    cotangents: Sequence[Tensor],
    positions: Sequence[int],
) -> Backward:
    """Trace what autograd computes, custom backwards included, at the dtypes and shapes of some tensors.

    Args:
        call: as in `Binding`.
        tensors: one per input.
        wrt: names to differentiate by.
        cotangents: one per output that is differentiated, of its shape; only their shapes count.
        positions: which of the function's tensors those outputs are.

    Raises:
        UnknownOperator, NonDeterministic, Untraceable: as `trace`.
        Exception: whatever the function or its backward raises.
    """
    missing: set[str] = set()
    seeds = {f"d_cotangent{n}": cotangent.detach() for n, cotangent in enumerate(cotangents)}

    def backward(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        leaves = {name: given[name].detach().requires_grad_(name in wrt) for name in tensors}
        with torch.enable_grad():
            everything = call({name: leaf.clone() for name, leaf in leaves.items()})
            outputs = [(everything[place], given[seed]) for place, seed in zip(positions, seeds, strict=True)]
            pairs = [(out, seed.to(out.dtype).reshape(out.shape)) for out, seed in outputs if out.requires_grad]
            grads: Sequence[Tensor | None] = [None] * len(wrt)
            if pairs:
                outs, weights = zip(*pairs, strict=True)
                _number_backward([out.grad_fn for out in outs])
                grads = torch.autograd.grad(outs, [leaves[name] for name in wrt], weights, allow_unused=True)
        missing.update(name for name, grad in zip(wrt, grads, strict=True) if grad is None)
        return tuple(
            torch.zeros_like(given[name])
            if grad is None
            else grad.to_dense()
            if grad.layout is torch.sparse_coo
            else grad
            for name, grad in zip(wrt, grads, strict=True)
        )

    traced = trace(backward, {**{name: tensor.detach() for name, tensor in tensors.items()}, **seeds})
    gradients = replace(traced.program, outputs=traced.program.outputs[: traced.outputs])
    return Backward(gradients, frozenset(missing), traced.guards)


def trace_graph(call: Call, tensors: Mapping[str, Tensor]) -> fx.GraphModule:
    """The ATen graph of a function of named tensors: functionalised, its inputs apart, its source lines recorded.

    Raises:
        Untraceable: torch cannot trace the function.
        Exception: whatever the function itself raises on these inputs.
    """
    names = list(tensors)

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        return call(dict(zip(names, values, strict=True)))

    clones = [_copy(tensor, tensor.requires_grad) for tensor in tensors.values()]
    functional = dispatch_functionalize(flat, mode=FunctionalTensorMode(pre_dispatch=False))
    options: dict[str, Any] = {
        "decomposition_table": _decompositions(),
        "record_stack_traces": True,
        "_error_on_data_dependent_ops": False,
    }
    quiet, states = warnings.catch_warnings(), torch.random.fork_rng(devices=[])
    with _source_lines(), quiet, states, _without_fused_layers():
        warnings.simplefilter("ignore")
        try:
            return _with_forward_lines(proxy_tensor.make_fx(functional, **options)(*clones))
        except SymcheckError:
            raise
        except Exception as error:
            return _graph_unfunctionalised(flat, clones, options, error)


def _graph_unfunctionalised(
    flat: Callable[..., Any], clones: list[Tensor], options: dict[str, Any], first: Exception
) -> fx.GraphModule:
    """Where functionalisation fails: run the function itself, then trace without, if nothing is written in place."""
    flat(*(_copy(clone, clone.requires_grad) for clone in clones))  # its own error, if any
    try:
        module = proxy_tensor.make_fx(flat, **options)(*(clone.detach().clone() for clone in clones))
    except Exception as error:
        raise Untraceable(_one_line(first)) from error
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise Untraceable(_one_line(first)) from first
    return module


def _copy(tensor: Tensor, requires_grad: bool) -> Tensor:
    """A copy for the user's code: not a leaf, so that it may write to it and still differentiate by it."""
    return tensor.detach().requires_grad_(requires_grad).clone()


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"torch could not trace it: {type(error).__name__}: {text[0][:200] if text else ''}"


@lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Any]:
    extra = {key: decomposition_table[key] for key in get_decompositions(EXTRA_DECOMPOSITIONS)}
    table = {**core_aten_decompositions(), **extra}
    return {key: value for key, value in table.items() if not has_meaning(key) and not is_random(key)}


@contextmanager
def _without_fused_layers() -> Iterator[None]:
    """Let torch run a recurrent layer in its parts, which have meanings, rather than as one operator of oneDNN."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def _source_lines() -> Iterator[None]:
    """Let torch record the user's frames on each node, whatever the function is called."""
    kept = fx.proxy.TracerBase._filter_traceback_frames

    def user_frames(self: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
        ours = [place for place, f in enumerate(summary) if f.filename == __file__]
        inside = summary[max(ours, default=-1) + 1 :]  # not the lines that called for the trace
        frames = [f for f in inside if not f.filename.startswith((_TORCH, _SYMCHECK, "<frozen"))]
        return traceback.StackSummary.from_list(frames[-1:])

    fx.proxy.TracerBase._filter_traceback_frames = user_frames  # type: ignore[method-assign, assignment]
    try:
        with fx_traceback.preserve_node_meta():  # which operator each was decomposed from, and its step of autograd
            yield
    finally:
        fx.proxy.TracerBase._filter_traceback_frames = kept  # type: ignore[method-assign]


def _number_backward(roots: Sequence[Any]) -> None:
    """Let every node of the backward be recorded with the number of the forward step that it differentiates.

    The numbers are stored as their complement, so that what is recorded elsewhere keeps apart.
    """
    seen, waiting = set(), [root for root in roots if root is not None]
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        waiting += [parent for parent, _ in step.next_functions if parent is not None]
        step.register_prehook(partial(_begin_step, step._sequence_nr()))
        step.register_hook(lambda *_: fx_traceback.reset_grad_fn_seq_nr())


def _begin_step(number: int, *_: Any) -> None:
    fx_traceback.set_grad_fn_seq_nr(~number)


def _with_forward_lines(module: fx.GraphModule) -> fx.GraphModule:
    """Nodes of the backward that have no line of the user's get that of the forward step that they differentiate.

    An addition of gradients has none: it gets a line of what it adds.
    """
    lines: dict[int, str] = {}
    for node in module.graph.nodes:
        number = node.meta.get("seq_nr", 0)
        if node.stack_trace:
            lines.setdefault(number, node.stack_trace)
        elif ~number in lines:
            node.stack_trace = lines[~number]
        elif node.op == "call_function":
            node.stack_trace = next((part.stack_trace for part in node.all_input_nodes if part.stack_trace), None)
    return module
