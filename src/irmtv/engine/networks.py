"""Networks with the run axis built in: one call computes every run.

Parameters of R runs are stacked, (R, ...). The input comes once per data set, (T, N, ...), and serves the
K = R / T runs on it. Inside, rows stand last, (R, features, N): then a layer is one batched matrix product
with contiguous reads, and the shared input is never copied per run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from irmtv.core.layers import layer_shapes
from irmtv.core.risk import LastLayer
from irmtv.core.types import Task
from irmtv.engine.optim import FlatParameters

Parameters = Mapping[str, Tensor]


class Output(NamedTuple):
    logits: Tensor  # (R, N), or (R, N, C) for several outputs
    last: LastLayer | None  # for a vector classifier; None where it multiplies the logits


class Net(Protocol):
    """What the engine asks of a network."""

    n_outputs: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter shapes of one run."""
        ...

    def init(self, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
        """One run's start, float64 on the CPU."""
        ...

    def prepare(self, x: Tensor) -> Tensor:
        """(T, N, ...) -> the layout that `forward` reads; done once for a full batch."""
        ...

    def forward(self, p: Parameters, x: Tensor, training: bool = False) -> Output: ...


class _Layers:
    """Layers of weights W0, W1, ... (out, in, ...) and biases b0, b1, ..., of every run."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    def init(self, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Xavier-uniform weights and biases of zero, as the authors start."""
        start = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self.shapes.items()}
        for name, shape in self.shapes.items():
            if name.startswith("W"):
                bound = math.sqrt(6 / ((shape[0] + shape[1]) * math.prod(shape[2:])))
                start[name].uniform_(-bound, bound, generator=generator)
        return start


class MLP(_Layers):
    """Linear layers with ReLU between them; `hidden=()` is a linear model."""

    def __init__(self, n_features: int, hidden: Sequence[int] = (), n_outputs: int = 1) -> None:
        self.widths = (n_features, *hidden, n_outputs)
        self.n_outputs = n_outputs

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return layer_shapes(self.widths)

    def prepare(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).contiguous()  # (T, D, N)

    def forward(self, p: Parameters, x: Tensor, training: bool = False) -> Output:
        return self.output(p, self.layers(p, x))

    def layers(self, p: Parameters, x: Tensor) -> list[Tensor]:
        """What every layer reads, (R, in, N), the first one (T, in, N); and what the last one puts out."""
        n_sets, n_rows, n_runs = x.shape[0], x.shape[2], len(p["W0"])
        values = [x]
        for i, width in enumerate(self.widths[1:]):
            w, b, h = p[f"W{i}"], p[f"b{i}"], values[-1]  # (R, out, in), (R, out, 1)
            if i == 0 and n_sets < n_runs:  # all K runs on a data set in one product: (T, K out, in) x (T, in, N)
                w, b = w.reshape(n_sets, -1, w.shape[2]), b.reshape(n_sets, -1, 1)
                h = torch.baddbmm(b, w, h).view(n_runs, width, n_rows)  # (R, out, N)
            else:
                h = torch.baddbmm(b, w, h)
            values.append(h if i == len(self.widths) - 2 else h.relu())
        return values

    def output(self, p: Parameters, values: Sequence[Tensor]) -> Output:
        """Of `layers`."""
        inputs, h = values[-2:]
        last = LastLayer(inputs, p[f"W{len(values) - 2}"].squeeze(1)) if self.n_outputs == 1 else None
        return Output(h.squeeze(1) if h.shape[1] == 1 else h.transpose(1, 2), last)

    @property
    def linear(self) -> bool:
        return len(self.widths) == 2

    def pull_back(self, p: Parameters, values: Sequence[Tensor], by_logits: Tensor) -> None:
        """From the gradient in the logits, (R, N) or (R, N, C), to those in the parameters, written into
        `p[name].grad`; `values` are those of `layers`.

        Two products and a sum a layer: autograd takes as long again for the bookkeeping.
        """
        by = by_logits.unsqueeze(1) if by_logits.ndim == 2 else by_logits.transpose(1, 2)  # (R, C, N)
        for i in range(len(self.widths) - 2, -1, -1):
            weight, bias, h = p[f"W{i}"].grad, p[f"b{i}"].grad, values[i]
            assert weight is not None and bias is not None
            n_sets = len(h)  # the first layer reads data sets, of which runs have some in common
            rows = by.reshape(n_sets, -1, by.shape[2])
            torch.bmm(rows, h.transpose(1, 2), out=weight.view(n_sets, -1, h.shape[1]))
            torch.sum(by, 2, keepdim=True, out=bias)
            if i > 0:
                back = p[f"W{i}"].transpose(1, 2)  # (R, in, out)
                by = back * by if back.shape[2] == 1 else torch.bmm(back, by)
                by = torch.ops.aten.threshold_backward(by, h, 0)  # 0 where h is: in one pass, as autograd does


class ThereAndBack:
    """From rows to logits, and from the gradient in these to that in the parameters.

    Of an MLP both are written out where nothing stands between the parameters and it; else autograd keeps the graph.
    """

    def __init__(self, net: Net, by_hand: bool = True) -> None:
        self.net, self.mlp = net, net if by_hand and isinstance(net, MLP) else None
        self.values: list[Tensor] = []
        self.logits: Tensor

    def forward(self, views: Parameters, x: Tensor) -> Output:
        with torch.set_grad_enabled(self.mlp is None):
            if self.mlp is None:
                out = self.net.forward(views, x, training=True)
            else:
                self.values = self.mlp.layers(views, x)
                out = self.mlp.output(views, self.values)
        self.logits = out.logits
        return out

    def pull_back(self, parameters: FlatParameters, by_logits: Tensor | None) -> None:
        """The gradient in the parameters, in the place of the one before, from that in the logits of `forward`."""
        by_logits = None if by_logits is None else by_logits.reshape(self.logits.shape)
        if self.mlp is None:
            parameters.gradient.zero_()
            torch.autograd.backward(self.logits, by_logits)
        else:
            assert by_logits is not None
            with torch.no_grad():
                self.mlp.pull_back(parameters.views, self.values, by_logits)


class Linear(MLP):
    """A linear model: the paper's Phi on the simulation."""

    def __init__(self, n_features: int, n_outputs: int = 1) -> None:
        super().__init__(n_features, (), n_outputs)


class Conv1d(_Layers):
    """Convolutions over series, then the mean over time: by default the paper's Landcover network.

    Conv-ReLU for every kernel, a max-pool of 2 after the layers in `pool_after`, and the last layer's
    channels are the outputs. The runs are groups of one convolution.
    """

    def __init__(
        self,
        n_channels: int,
        n_outputs: int,
        channels: Sequence[int] = (32, 32, 64),
        kernels: Sequence[int] = (5, 3, 3, 3),
        pool_after: Sequence[int] = (1, 2),
        last_relu: bool = True,
    ) -> None:
        if len(kernels) != len(channels) + 1:
            raise ValueError(
                "Conv1d: kernels must have one entry per layer, that is one more than channels. "
                f"Got {len(kernels)} kernels and {len(channels)} channels."
            )
        self.widths = (n_channels, *channels, n_outputs)
        self.kernels, self.pool_after, self.last_relu = tuple(kernels), frozenset(pool_after), last_relu
        self.n_outputs = n_outputs

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for i, kernel in enumerate(self.kernels):
            shapes[f"W{i}"] = (self.widths[i + 1], self.widths[i], kernel)
            shapes[f"b{i}"] = (self.widths[i + 1],)
        return shapes

    def prepare(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ValueError(
                "Conv1d reads series: x must be (rows, channels, length). "
                f"Got {tuple(x.shape[1:])}; add a channel axis or use hidden=... for a table."
            )
        return x.transpose(0, 1).flatten(1, 2).contiguous()  # (N, T channels, length)

    def forward(self, p: Parameters, x: Tensor, training: bool = False) -> Output:
        n_runs, n_layers = len(p["W0"]), len(self.kernels)
        h = x
        for i, kernel in enumerate(self.kernels):
            w = p[f"W{i}"].flatten(0, 1)  # (R out, in, kernel)
            groups = h.shape[1] // self.widths[i]  # T in the first layer, whose input runs share, then R
            h = functional.conv1d(h, w, p[f"b{i}"].flatten(), padding=kernel // 2, groups=groups)
            if i < n_layers - 1 or self.last_relu:
                h = h.relu()
            if i in self.pool_after:
                h = functional.max_pool1d(h, 2)
        out = h.mean(-1).view(len(x), n_runs, self.n_outputs)  # (N, R, C)
        return Output(out[..., 0].T if self.n_outputs == 1 else out.transpose(0, 1), None)


class Module:
    """A user's own network: `factory()` gives an `nn.Module` that maps (N, ...) to (N,), (N, 1) or (N, C).

    All runs in one vectorised call (`torch.func`); a module with randomness or state of its own (dropout,
    batch norm) or one that cannot be vectorised runs in a loop over runs, each with its own random stream.
    """

    def __init__(self, factory: Callable[[], nn.Module], n_outputs: int = 1) -> None:
        self.factory, self.n_outputs = factory, n_outputs
        self._template = self._build(0)
        self.vectorised = not _has_state_or_randomness(self._template)
        if not self.shapes:
            raise ValueError("net must have parameters to train. Got a module whose parameters are none or all frozen.")
        self._seeds: list[int] = []
        self._fixed: list[dict[str, Tensor]] = []  # per run: parameters with requires_grad=False, used as they are
        self._copies: list[nn.Module] = []
        self._streams: list[Tensor] = []

    def _build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.factory()
        if not isinstance(module, nn.Module):
            raise ValueError(f"module must be a function that returns a torch.nn.Module. Got {type(module)}.")
        return module

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in self._template.named_parameters() if p.requires_grad}

    def init(self, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
        module = self._build(seed)
        if module is self._template:
            raise ValueError(
                "net must return a new module at every call, since each run starts its own. Got the same one twice; "
                "make it inside the function: net=lambda: MyModule(...)."
            )
        self._seeds.append(seed)
        self._fixed.append({k: p.detach() for k, p in module.named_parameters() if not p.requires_grad})
        if not self.vectorised:
            self._add_copy(module, seed)
        return {k: p.detach().to(torch.float64) for k, p in module.named_parameters() if p.requires_grad}

    def _add_copy(self, module: nn.Module, seed: int) -> None:
        self._copies.append(module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self._streams.append(torch.get_rng_state())

    def prepare(self, x: Tensor) -> Tensor:
        return x.clone()  # a user's module may write into its input

    def forward(self, p: Parameters, x: Tensor, training: bool = False) -> Output:
        n_sets, n_runs = len(x), len(next(iter(p.values())))
        per_set = n_runs // n_sets
        out = self._vectorised(p, x, n_sets, per_set, training) if self.vectorised else None
        if out is None:
            rows = [self._one(r, {k: v[r] for k, v in p.items()}, x[r // per_set], training) for r in range(n_runs)]
            out = torch.stack(rows)
        if self.n_outputs == 1 and out.ndim == 3:
            out = out.squeeze(2)
        wanted = (n_runs, x.shape[1], *((self.n_outputs,) if self.n_outputs > 1 else ()))
        if out.shape != wanted:
            raise ValueError(
                f"the module must give {self.n_outputs} outputs per row: {wanted[1:]}. Got {tuple(out.shape[1:])}."
            )
        return Output(out, None)

    def _vectorised(self, p: Parameters, x: Tensor, n_sets: int, per_set: int, training: bool) -> Tensor | None:
        """All runs in one call; None, from then on, where the module cannot be called so."""
        template = copy.copy(self._template).to(x.device).train(training)

        def one(params: dict[str, Tensor], rows: Tensor) -> Tensor:
            return torch.func.functional_call(template, params, (rows,))  # type: ignore[no-any-return]

        fixed = {k: torch.stack([f[k] for f in self._fixed]).to(x.device, x.dtype) for k in self._fixed[0]}
        shaped = {k: v.view(n_sets, per_set, *v.shape[1:]) for k, v in {**p, **fixed}.items()}
        over_runs = torch.func.vmap(one, in_dims=(0, None))
        try:
            return torch.func.vmap(over_runs)(shaped, x).flatten(0, 1)
        except RuntimeError:  # random numbers or branches inside; what is truly wrong the loop says again
            self.vectorised = False
            for seed in self._seeds:
                self._add_copy(self._build(seed), seed)
            return None

    def _one(self, run: int, params: dict[str, Tensor], rows: Tensor, training: bool) -> Tensor:
        module = self._copies[run].to(rows.device, rows.dtype).train(training)
        devices = [rows.device] if rows.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            if training:  # this run's own stream, so that its dropout does not depend on its neighbours
                torch.set_rng_state(self._streams[run])
                if rows.is_cuda:
                    torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            out: Tensor = torch.func.functional_call(module, params, (rows,))
            if training:
                self._streams[run] = torch.get_rng_state()
        return out

    def buffers(self) -> list[dict[str, Tensor]]:
        """State that is not trained (batch norm's averages), per run."""
        return [{k: b.detach().clone() for k, b in m.named_buffers()} for m in self._copies]

    def load_buffers(self, states: list[dict[str, Any]]) -> None:
        for module, state in zip(self._copies, states, strict=True):
            for name, buffer in module.named_buffers():
                buffer.copy_(state[name])


def _has_state_or_randomness(module: nn.Module) -> bool:
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)
    return any(True for _ in module.buffers()) or any(isinstance(m, random) for m in module.modules())


def as_network(
    net: Net | Callable[[], nn.Module] | None, task: Task, inputs: tuple[int, ...], hidden: Sequence[int]
) -> Net:
    """What `train` was given as net=, or an MLP of these hidden widths, for rows of the shape `inputs`."""
    if net is None:
        if len(inputs) > 1:
            raise ValueError(
                f"x has shape (rows, {', '.join(map(str, task.train.x.shape[1:]))}); hidden=... is for tables (rows, "
                "features). Give net=irmtv.engine.Conv1d(...) or a function that returns a torch.nn.Module."
            )
        return MLP(inputs[0], hidden, task.n_outputs)
    if isinstance(net, Module):
        return Module(net.factory, task.n_outputs)  # without any run's copies: this chunk's own
    if hasattr(net, "shapes") and hasattr(net, "forward") and not isinstance(net, nn.Module):
        own = cast(Net, net)
        if own.n_outputs != task.n_outputs:
            raise ValueError(
                f"net must have one output per class or target of the task, n_outputs={task.n_outputs}. "
                f"Got n_outputs={own.n_outputs}."
            )
        return own
    if callable(net) and not isinstance(net, nn.Module):
        return Module(net, task.n_outputs)
    raise ValueError(
        "net must be a network of irmtv.engine or a function that returns a new torch.nn.Module (each run starts "
        f"its own). Got {type(net).__name__}; wrap it: net=lambda: MyModule(...)."
    )
