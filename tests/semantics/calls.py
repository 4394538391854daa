"""Small calls of operators that no sample of torch's OpInfo database reaches, or reaches well, for `test_rows.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from symcheck.errors import UnknownOperator
from symcheck.lowering import lower, to_numpy
from tests.semantics.reaching import Call, recorded

Arguments = tuple[Any, ...]


class Draw:
    """Draws the arguments of a call, from a fixed seed."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.fixed: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        """Real numbers on both sides of 0."""
        return torch.from_numpy(np.asarray(self.generator.normal(size=shape)))

    def positive(self, *shape: int) -> Tensor:
        """Real numbers between 1/2 and 4."""
        return torch.from_numpy(np.asarray(self.generator.uniform(0.5, 4.0, size=shape)))

    def held(self, tensor: Tensor) -> Tensor:
        """A real tensor by which nothing is differentiated."""
        self.fixed.append(tensor)
        return tensor

    def whole(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to `high` - 1."""
        return torch.from_numpy(np.asarray(self.generator.integers(0, high, size=shape)))

    def truth(self, *shape: int) -> Tensor:
        """Truth values."""
        return self.whole(2, *shape).bool()


# row -> the overload of its operator (or another name), and the arguments; a dictionary at the end holds keywords
CALLS: dict[str, Callable[[Draw], Arguments]] = {
    "aten._adaptive_avg_pool3d": lambda d: ("default", d(1, 2, 4, 3, 3), [2, 2, 1]),
    "aten._cdist_forward": lambda d: ("default", d(3, 2), d(4, 2), 2.0, None),
    "aten._adaptive_avg_pool2d_backward": lambda d: ("default", d(1, 2, 2, 2), d.held(d(1, 2, 5, 4))),
    "aten._adaptive_avg_pool3d_backward": lambda d: ("default", d(1, 1, 2, 2, 1), d.held(d(1, 1, 4, 3, 3))),
    "aten._cdist_backward": lambda d: ("default", d(3, 4), d(3, 2), d(4, 2), 3.0, d.positive(3, 4)),
    "aten._pdist_backward": lambda d: ("default", d(6), d(4, 2), 2.0, d.positive(6)),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": lambda d: (
        "default", d(1, 2, 3, 4), d(1, 2, 3, 4), d(1, 2, 3, 4), d(1, 2, 3, 4), d(1, 2, 3, 4), d.positive(1, 2, 3),
        0.0, True,
    ),
    "aten._upsample_bilinear2d_aa_backward.default": lambda d: (
        "default", d(1, 1, 3, 4), [3, 4], [1, 1, 6, 5], False,
    ),
    "aten.avg_pool2d_backward": lambda d: (
        "default", d(1, 2, 3, 3), d.held(d(1, 2, 5, 5)), [3, 3], [2, 2], [1, 1], False, True, None,
    ),
    "aten.avg_pool3d_backward": lambda d: (
        "default", d(1, 1, 2, 2, 2), d.held(d(1, 1, 4, 4, 4)), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, False, None,
    ),
    "aten.convolution_backward": lambda d: (
        "default", d(2, 4, 3), d(2, 2, 5), d(4, 1, 3), [4], [2], [1], [1], False, [0], 2, [True, True, True],
    ),
    "aten.upsample_bicubic2d_backward.default": lambda d: ("default", d(1, 1, 5, 4), [5, 4], [1, 1, 3, 3], False),
    "aten.upsample_bilinear2d_backward.default": lambda d: ("default", d(1, 2, 5, 4), [5, 4], [1, 2, 3, 3], True),
    "aten.upsample_linear1d_backward.default": lambda d: ("default", d(1, 2, 5), [5], [1, 2, 3], False),
    "aten.upsample_trilinear3d_backward.default": lambda d: (
        "default", d(1, 1, 3, 4, 3), [3, 4, 3], [1, 1, 2, 3, 2], False,
    ),
    "aten.upsample_nearest1d_backward.default": lambda d: ("default", d(1, 2, 5), [5], [1, 2, 3]),
    "aten.upsample_nearest2d_backward.default": lambda d: ("default", d(1, 2, 5, 4), [5, 4], [1, 2, 3, 3]),
    "aten.upsample_nearest3d_backward.default": lambda d: ("default", d(1, 2, 5, 4, 3), [5, 4, 3], [1, 2, 3, 3, 2]),
    "aten._upsample_nearest_exact1d_backward.default": lambda d: ("default", d(1, 2, 5), [5], [1, 2, 3]),
    "aten._upsample_nearest_exact2d_backward.default": lambda d: ("default", d(1, 2, 5, 4), [5, 4], [1, 2, 3, 3]),
    "aten._upsample_nearest_exact3d_backward.default": lambda d: (
        "default", d(1, 2, 5, 4, 3), [5, 4, 3], [1, 2, 3, 3, 2],
    ),
    "aten.fill": lambda d: ("Tensor", d(3, 2), d()),
    "aten.grid_sampler_2d_backward": lambda d: (
        "default", d(2, 2, 3, 2), d(2, 2, 4, 3), 0.4 * d(2, 3, 2, 2), 0, 1, False, [True, True],
    ),
    "aten.grid_sampler_3d_backward": lambda d: (
        "default", d(1, 2, 2, 2, 2), d(1, 2, 3, 3, 3), 0.4 * d(1, 2, 2, 2, 3), 0, 0, True, [True, True],
    ),
    "aten.grid_sampler_3d": lambda d: ("default", d(1, 1, 3, 3, 3), 0.4 * d(1, 2, 2, 2, 3), 0, 0, False),
    "aten.im2col": lambda d: ("default", d(1, 2, 4, 3), [2, 2], [1, 1], [0, 0], [1, 1]),
    "aten.scatter.value": lambda d: ("value", d(4, 3), 0, torch.tensor([[0, 1, 2], [0, 3, 1]]), 1.5),
    "aten.max_pool2d_with_indices_backward": lambda d: _pooling_backward(d, 2, (1, 2, 4, 4)),
    "aten.__lshift__": lambda d: ("Tensor", d.whole(9, 5), d.whole(3, 5)),
    "aten.__rshift__": lambda d: ("Tensor", d.whole(99, 5), d.whole(3, 5)),
    "aten._convolution": lambda d: (
        "default", d(1, 2, 5), d(3, 2, 2), d(3), [1], [1], [1], False, [0], 1, False, False, False, False,
    ),
    "aten._ctc_loss": lambda d: ("default", d(5, 2, 4).log_softmax(-1), d.whole(3, 2, 2) + 1, [5, 4], [2, 1]),
    "aten._embedding_bag": lambda d: ("default", d(5, 3), d.whole(5, 6), torch.tensor([0, 2, 4])),
    "aten._index_put_impl": lambda d: ("default", d(4, 3), [torch.tensor([2, 0])], d(2, 3)),
    "aten._log_softmax_backward_data": lambda d: ("default", d(3, 4), d(3, 4).log_softmax(1), 1, torch.float64),
    "aten._pad_circular": lambda d: ("default", d(1, 2, 5), [2, 1]),
    "aten._reshape_alias": lambda d: ("default", d(2, 6), [3, 4], [4, 1]),
    "aten._reshape_alias_copy": lambda d: ("default", d(2, 6), [3, 4], [4, 1]),
    "aten._scaled_dot_product_flash_attention_for_cpu": lambda d: (
        "default", d(1, 2, 3, 4), d(1, 2, 3, 4), d(1, 2, 3, 4), 0.0, True,
    ),
    "aten._upsample_bicubic2d_aa.default": lambda d: ("default", d(1, 1, 6, 5), [3, 4], False),
    "aten._upsample_bilinear2d_aa.default": lambda d: ("default", d(1, 1, 6, 5), [3, 4], False),
    "aten._upsample_nearest_exact3d.default": lambda d: ("default", d(1, 1, 2, 3, 2), [3, 2, 4]),
    "aten.adaptive_max_pool2d_backward": lambda d: _adaptive_backward(
        d, "adaptive_max_pool2d", (1, 2, 4, 5), [2, 2]
    ),
    "aten.adaptive_max_pool3d_backward": lambda d: _adaptive_backward(
        d, "adaptive_max_pool3d", (1, 1, 4, 3, 3), [2, 2, 1]
    ),
    "aten.all": lambda d: ("dim", d.truth(6, 2), 1),
    "aten.argmax": lambda d: ("default", d(3, 4), 1),
    "aten.argmin": lambda d: ("default", d(3, 4), 0, True),
    "aten.argsort.default": lambda d: ("default", d(3, 4), 1, True),
    "aten.avg_pool1d": lambda d: ("default", d(1, 2, 6), [3], [2], [1]),
    "aten.bitwise_and": lambda d: ("Tensor", d.whole(99, 6), d.whole(99, 6)),
    "aten.bitwise_left_shift": lambda d: ("Tensor", d.whole(9, 5), d.whole(3, 5)),
    "aten.bitwise_or": lambda d: ("Tensor", d.whole(99, 6), d.whole(99, 6)),
    "aten.bitwise_right_shift": lambda d: ("Tensor", d.whole(99, 5), d.whole(3, 5)),
    "aten.bitwise_xor": lambda d: ("Tensor", d.whole(99, 6), d.whole(99, 6)),
    "aten.bucketize": lambda d: ("Tensor", d(3, 4), torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)),
    "aten.chunk": lambda d: ("default", d(5, 2), 2),
    "aten.col2im": lambda d: ("default", d(1, 8, 6), [3, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "aten.empty_permuted": lambda d: ("default", [2, 3], [1, 0], {"dtype": torch.float64}),
    "aten.empty_strided": lambda d: ("default", [2, 3], [3, 1], {"dtype": torch.float64}),
    "aten.new_empty_strided": lambda d: ("default", d(2), [2, 3], [3, 1]),
    "aten.nextafter": lambda d: ("default", d(6), d(6)),
    "aten.nonzero": lambda d: ("default", torch.tensor([[1, 0], [0, 3]])),
    "aten.select_copy": lambda d: ("int", d(3, 4), 1, 2),
    "aten.contiguous": lambda d: ("default", d(3, 2)),
    "aten.detach_copy": lambda d: ("default", d(3, 2)),
    "aten.div.Scalar_mode": lambda d: ("Scalar_mode", d(6), 0.3, {"rounding_mode": "floor"}),
    "aten.flatten": lambda d: ("using_ints", d(2, 3, 2), 1, 2),
    "aten.floor_divide": lambda d: ("default", d(6), d(6)),
    "aten.fractional_max_pool2d": lambda d: (
        "default", d(1, 2, 5, 5), [2, 2], [3, 2], d.held(torch.full((1, 2, 2), 0.3, dtype=torch.float64)),
    ),
    "aten.fractional_max_pool2d_backward": lambda d: _fractional_backward(d, 2, (1, 2, 5, 5)),
    "aten.fractional_max_pool3d": lambda d: (
        "default", d(1, 1, 4, 4, 4), [2, 2, 2], [2, 2, 1], d.held(torch.full((1, 1, 3), 0.3, dtype=torch.float64)),
    ),
    "aten.fractional_max_pool3d_backward": lambda d: _fractional_backward(d, 3, (1, 1, 4, 4, 4)),
    "aten.ger": lambda d: ("default", d(3), d(4)),
    "aten.hardshrink_backward": lambda d: ("default", d(6), d(6), 0.5),
    "aten.heaviside": lambda d: ("default", d(6), d(6)),
    "aten.igamma": lambda d: ("default", d.held(d.positive(6)), d.positive(6)),
    "aten.igammac": lambda d: ("default", d.held(d.positive(6)), d.positive(6)),
    "aten.isfinite": lambda d: ("default", d(4) / torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)),
    "aten.isinf": lambda d: ("default", d(4) / torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)),
    "aten.lift": lambda d: ("default", d(3, 2)),
    "aten.lift_fresh": lambda d: ("default", d(3, 2)),
    "aten.lift_fresh_copy": lambda d: ("default", d(3, 2)),
    "aten.logical_and": lambda d: ("default", d.truth(6), d.truth(6)),
    "aten.logical_or": lambda d: ("default", d.truth(6), d.truth(6)),
    "aten.logical_xor": lambda d: ("default", d.truth(6), d.truth(6)),
    "aten.masked_scatter_backward": lambda d: ("default", d(6), torch.tensor([0, 1, 1, 0, 0, 1]).bool(), [4]),
    "aten.max_pool3d_with_indices_backward": lambda d: _pooling_backward(d, 3, (1, 1, 4, 4, 4)),
    "aten.mish_backward": lambda d: ("default", d(6), d(6)),
    "aten.narrow": lambda d: ("default", d(5, 2), 0, 1, 3),
    "aten.native_batch_norm": lambda d: (
        "default", d(4, 3), d(3), d(3), d.held(d(3)), d.held(d.positive(3)), False, 0.1, 1e-5,
    ),
    "aten.native_channel_shuffle": lambda d: ("default", d(1, 4, 2, 2), 2),
    "aten.outer": lambda d: ("default", d(3), d(4)),
    "aten.pow.Scalar": lambda d: ("Scalar", 1.7, d(6)),
    "aten.reflection_pad1d_backward": lambda d: ("default", d(1, 2, 7), d.held(d(1, 2, 4)), [2, 1]),
    "aten.reflection_pad2d_backward": lambda d: ("default", d(1, 1, 5, 5), d.held(d(1, 1, 3, 4)), [1, 0, 1, 1]),
    "aten.reflection_pad3d_backward": lambda d: (
        "default", d(1, 1, 3, 4, 4), d.held(d(1, 1, 2, 3, 3)), [1, 0, 0, 1, 1, 0],
    ),
    "aten.repeat_interleave.self_int": lambda d: ("self_int", d(3, 2), 2, 1),
    "aten.replication_pad1d_backward": lambda d: ("default", d(1, 2, 7), d.held(d(1, 2, 4)), [2, 1]),
    "aten.replication_pad2d_backward": lambda d: ("default", d(1, 1, 5, 5), d.held(d(1, 1, 3, 4)), [1, 0, 1, 1]),
    "aten.replication_pad3d_backward": lambda d: (
        "default", d(1, 1, 3, 4, 4), d.held(d(1, 1, 2, 3, 3)), [1, 0, 0, 1, 1, 0],
    ),
    "aten.reshape": lambda d: ("default", d(2, 6), [3, -1]),
    "aten.scatter.reduce": lambda d: (
        "reduce", d(4, 3), 0, torch.tensor([[0, 1, 2], [0, 3, 1]]), d(2, 3), {"reduce": "multiply"},
    ),
    "aten.scatter.value_reduce": lambda d: (
        "value_reduce", d(4, 3), 0, torch.tensor([[0, 1, 2], [0, 3, 1]]), 1.5, {"reduce": "add"},
    ),
    "aten.searchsorted": lambda d: ("Tensor", torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64), d(3, 4)),
    "aten.slice_copy": lambda d: ("Tensor", d(5, 2), 0, 1, 4, 2),
    "aten.softshrink_backward": lambda d: ("default", d(6), d(6), 0.5),
    "aten.special_airy_ai": lambda d: ("default", d(6)),
    "aten.special_bessel_j0": lambda d: ("default", d.positive(6)),
    "aten.special_bessel_j1": lambda d: ("default", d.positive(6)),
    "aten.special_bessel_y0": lambda d: ("default", d.positive(6)),
    "aten.special_bessel_y1": lambda d: ("default", d.positive(6)),
    "aten.special_gammainc": lambda d: ("default", d.held(d.positive(6)), d.positive(6)),
    "aten.special_gammaincc": lambda d: ("default", d.held(d.positive(6)), d.positive(6)),
    "aten.special_modified_bessel_i0": lambda d: ("default", d(6)),
    "aten.special_modified_bessel_i1": lambda d: ("default", d(6)),
    "aten.special_modified_bessel_k0": lambda d: ("default", d.positive(6)),
    "aten.special_modified_bessel_k1": lambda d: ("default", d.positive(6)),
    "aten.special_ndtr": lambda d: ("default", d(6)),
    "aten.special_scaled_modified_bessel_k0": lambda d: ("default", d.positive(6)),
    "aten.special_scaled_modified_bessel_k1": lambda d: ("default", d.positive(6)),
    "aten.special_spherical_bessel_j0": lambda d: ("default", d.positive(6)),
    "aten.special_zeta": lambda d: ("default", d.held(d.positive(6) + 1), d.positive(6)),
    "aten.split_copy": lambda d: ("Tensor", d(5, 2), 2),
    "aten.square": lambda d: ("default", d(6)),
    "aten.tile": lambda d: ("default", d(2, 3), [2, 1]),
    "aten.to": lambda d: ("dtype", d(6), torch.float64),
    "aten.unsafe_chunk": lambda d: ("default", d(5, 2), 2),
    "aten.unsafe_split_with_sizes": lambda d: ("default", d(5, 2), [2, 3]),
    "aten.where.Scalar": lambda d: ("Scalar", d.truth(6), 2.5, 1.5),
    "aten.where.ScalarOther": lambda d: ("ScalarOther", d.truth(6), d(6), 1.5),
    "aten.where.ScalarSelf": lambda d: ("ScalarSelf", d.truth(6), 1.5, d(6)),
    "prims.convert_element_type": lambda d: ("default", d(6), torch.float64),
}  # fmt: skip


def _adaptive_backward(d: Draw, name: str, shape: tuple[int, ...], size: list[int]) -> Arguments:
    x = d.held(d(*shape))
    out, places = getattr(torch.ops.aten, name)(x, size)
    return ("default", d(*out.shape), x, places)


def _fractional_backward(d: Draw, axes: int, shape: tuple[int, ...]) -> Arguments:
    x, size = d.held(d(*shape)), [2] * axes
    samples = torch.full((*shape[:2], axes), 0.3, dtype=torch.float64)
    out, places = getattr(torch.ops.aten, f"fractional_max_pool{axes}d")(x, size, size, samples)
    return ("default", d(*out.shape), x, size, size, places)


def _pooling_backward(d: Draw, axes: int, shape: tuple[int, ...]) -> Arguments:
    x, ones = d.held(d(*shape)), [1] * axes
    window = ([2] * axes, [1, *([2] * (axes - 1))], [0] * axes, ones, False)
    out, places = getattr(torch.ops.aten, f"max_pool{axes}d_with_indices")(x, *window)
    return ("default", d(*out.shape), x, *window, places)


def direct_call(row: str) -> Call:
    """The call in the table, as a graph of this one operator: whether or not tracing would take it apart."""
    draw = Draw()
    overload, *args = CALLS[row](draw)
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    namespace, name = row.split(".")[:2]
    target = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    with torch.no_grad():
        results = target(*args, **kwargs)
    graph, tensors = fx.Graph(), {}

    def placeholder(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, Tensor) for item in value):
            return [placeholder(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder(f"x{len(tensors)}")
        node.meta["val"] = tensors[node.name] = value
        return node

    node = graph.call_function(target, tuple(map(placeholder, args)), kwargs)
    node.meta["val"] = results
    nodes, values = [node], [results]
    if isinstance(results, tuple | list):
        values = list(results)
        nodes = [graph.call_function(operator.getitem, (node, place)) for place in range(len(values))]
    end = graph.output(tuple(nodes))
    with recorded() as used:
        try:
            traced = lower(fx.GraphModule(torch.nn.Module(), graph), list(tensors))
        except UnknownOperator:  # the other results are saved for the backward pass, and have no meaning
            end.args = (tuple(nodes[:1]),)
            traced = lower(fx.GraphModule(torch.nn.Module(), graph), list(tensors))
    held = {id(tensor) for tensor in draw.fixed}
    wrt = tuple(key for key, value in tensors.items() if value.is_floating_point() and id(value) not in held)
    inputs = {key: to_numpy(value) for key, value in tensors.items()}
    outputs = [to_numpy(values[place]) for place in traced.positions]
    return Call(row, traced, wrt, inputs, outputs, frozenset(used))
