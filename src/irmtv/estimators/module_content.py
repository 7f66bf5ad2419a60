"""What a model file holds of a network of the user's own: numbers, by name. Its code comes from the user again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from irmtv.core.messages import shown
from irmtv.engine.networks import Module, Net
from irmtv.models.networks.predictor import Member
from irmtv.models.networks.settings import as_net
from irmtv.persistence import ModelFile, ModelFileError

MODULE = "module"
KINDS = ("parameters", "frozen", "buffers")  # trained, with requires_grad=False, and state such as batch norm's
Shapes = dict[str, dict[str, tuple[int, ...]]]  # kind -> name -> shape


def module_content(member: Member, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays `member<number>/<kind>/<name>`, and their shapes for the description."""
    # the network's own record of what it does not train: a random start would be another one at the next call
    frozen = member.net._fixed[0] if isinstance(member.net, Module) else {}
    state: dict[str, Mapping[str, Tensor]] = {
        "parameters": {name: value[0] for name, value in member.parameters.items()},
        "frozen": frozen,
        "buffers": member.buffers,
    }
    arrays = {f"member{number}/{kind}/{name}": v for kind, of in state.items() for name, v in of.items()}
    shapes = {kind: {name: tuple(v.shape) for name, v in sorted(of.items())} for kind, of in state.items()}
    return arrays, {"type": MODULE, "shapes": shapes}


def described(nets: Sequence[Mapping[str, Any]]) -> list[Shapes]:
    """The shapes of the networks of the user's own, from a file's description of all; either all are, or none."""
    own = [net["shapes"] for net in nets if net["type"] == MODULE]
    if own and len(own) < len(nets):
        raise ValueError("some of its networks are of the user's own, and some are not")
    return [{kind: {name: tuple(shape) for name, shape in of[kind].items()} for kind in KINDS} for of in own]


def check_same_module(file: ModelFile, own: Sequence[Shapes], module: Any) -> None:
    """Raise unless `module` makes the networks that the file holds the numbers of: networks of these shapes.

    What the user's function itself raises is left as it is.
    """
    where = repr(str(file.path))
    if not own:
        if module is not None:
            raise ModelFileError(
                f"module must be left out: {where} holds no network of your own, module=..., but one of irmtv. Use "
                "load(path)."
            )
        return
    names = shown(own[0]["parameters"].items(), form=lambda item: f"{item[0]} {item[1]}")
    if module is None:
        raise ModelFileError(
            f"module must be given to load {where}: it was fitted with module=..., and a file holds no code, only the "
            f"numbers of that network, {names}. Use load(path, module=...) with the same function."
        )
    got = _shapes(module)
    for shapes in own:
        differ = [
            f"{name} ({kind}) {shapes[kind].get(name, 'missing')} in the file and {got[kind].get(name, 'missing')} here"
            for kind in KINDS
            for name in sorted(shapes[kind].keys() | got[kind].keys())
            if shapes[kind].get(name) != got[kind].get(name)
        ]
        if differ:
            raise ModelFileError(
                f"module must make the network that {where} holds the numbers of. Got one with "
                f"{shown(differ, form=str)}. Give the function that was module= when the estimator was fitted."
            )


def _shapes(module: Any) -> Shapes:
    net = as_net(module)
    if _is_of_irmtv(net):
        return {"parameters": net.shapes, "frozen": {}, "buffers": {}}
    factory = _factory(net)
    Module(factory).init(0, torch.Generator())  # which says what is wrong with it
    with torch.random.fork_rng(devices=[]):
        made = factory()
    named = list(made.named_parameters())
    return {
        "parameters": {name: tuple(p.shape) for name, p in named if p.requires_grad},
        "frozen": {name: tuple(p.shape) for name, p in named if not p.requires_grad},
        "buffers": {name: tuple(b.shape) for name, b in made.named_buffers()},
    }


def _is_of_irmtv(net: Any) -> bool:
    """A network of irmtv.engine, given as it is."""
    return hasattr(net, "shapes") and not isinstance(net, Module)


def _factory(net: Any) -> Callable[[], nn.Module]:
    return net.factory if isinstance(net, Module) else net


def read_module(file: ModelFile, number: int, shapes: Shapes, module: Any, n_outputs: int) -> Member:
    """The network of a member with the numbers of the file; `module` was checked."""
    state: dict[str, dict[str, Tensor]] = {}
    for kind in KINDS:
        start = f"member{number}/{kind}/"
        found = {k.removeprefix(start): v for k, v in file.arrays.items() if k.startswith(start)}
        if {name: v.shape for name, v in found.items()} != shapes[kind]:
            got = {name: v.shape for name, v in found.items()}
            raise ValueError(f"member {number} has {kind} {got} for a network of {shapes[kind]}")
        state[kind] = {name: torch.from_numpy(v) for name, v in found.items()}
    parameters = state["parameters"]
    if not parameters or any(not p.is_floating_point() for p in parameters.values()):
        raise ValueError(f"member {number} has parameters that are not floating point, or none")
    net: Net = as_net(module)
    if not _is_of_irmtv(net):
        everything = {name: value for of in state.values() for name, value in of.items()}
        net = Module(_with_state(_factory(net), everything), n_outputs)
        net.init(0, torch.Generator())
    with_runs = {name: value.unsqueeze(0) for name, value in parameters.items()}
    return Member(net, with_runs, state["buffers"], int(file.meta["members"][number]["step"]))


def _with_state(factory: Callable[[], nn.Module], state: Mapping[str, Tensor]) -> Callable[[], nn.Module]:
    """The factory, its modules in the state (and the precision) of the file."""

    def make() -> nn.Module:
        module = factory()
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            value.data = state[name].clone()
        return module

    return make
