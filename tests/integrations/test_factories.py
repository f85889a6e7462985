"""timm's registry and torchtitan's container, by small copies of their layout: neither installs beside torch on a CPU.

Where timm does install, its own registry is tested, too.
"""

import dataclasses
import functools
import importlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from loops import EPOCHS, MEMBERS, adamw, batches, flat, loss_of, plain_loop, relative_difference, small_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from torch_ggt import GGT
from torch_ggt.integrations import Whitened

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of torch.distributed.checkpoint are not ours


# ---- timm ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OptimInfo:
    """The fields of timm.optim.OptimInfo that the factory reads."""

    name: str
    opt_class: object
    has_betas: bool = False
    has_momentum: bool = False
    has_eps: bool = True
    defaults: dict | None = None


class Registry:
    """timm's factory (1.0.31): what it does to the parameters and to the arguments of an optimizer."""

    def __init__(self):
        self.infos = {}

    def register(self, info):
        self.infos[info.name.lower()] = info

    def create_optimizer(self, model, opt, lr=None, weight_decay=0.0, momentum=0.9, **options):
        info = self.infos[opt.lower().split("_")[-1]]
        named = [(p, p.ndim <= 1) for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p, small in named if small], "weight_decay": 0.0},
            {"params": [p for p, small in named if not small], "weight_decay": weight_decay},
        ]
        options = {**(info.defaults or {}), "weight_decay": 0.0, **options}
        if lr is not None:
            options["lr"] = lr
        if info.has_momentum:
            options.setdefault("momentum", momentum)
        if not info.has_betas:
            options.pop("betas", None)
        if not info.has_eps:
            options.pop("eps", None)
        maker = info.opt_class
        if isinstance(maker, str):  # a name with its module, as timm takes it
            module, _, name = maker.rpartition(".")
            maker = getattr(importlib.import_module(module), name)
        return maker(groups, **options)


def registry_of(layout):
    if layout == "copy":
        return Registry(), OptimInfo
    try:
        factory = importlib.import_module("timm.optim._optim_factory")
    except (ImportError, RuntimeError) as error:  # a torchvision that was built for another torch raises RuntimeError
        pytest.skip(f"timm cannot be imported: {error}")
    return factory.OptimizerRegistry(), factory.OptimInfo


def groups_like_timm(params):
    params = list(params)
    return [{"params": [p for p in params if p.ndim <= 1]}, {"params": [p for p in params if p.ndim > 1]}]


@pytest.mark.parametrize("layout", ["copy", "timm"])
@pytest.mark.parametrize("name", MEMBERS)
def test_timm_registry(name, layout):
    registry, info = registry_of(layout)
    registry.register(info("ggt", "torch_ggt.GGT", has_betas=True, defaults={"window": 3}))
    registry.register(info("whitenedadamw", Whitened, has_betas=True, defaults={"whitening": {"window": 3}}))
    chosen = {"ggt": "ggt", "whiten": "whitenedadamw"}[name]
    model = small_model()
    optimizer = registry.create_optimizer(model, chosen, lr=1e-2, weight_decay=0.05)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.05]
    for group in optimizer.param_groups:  # as in MEMBERS
        group["weight_decay"] = 0.0
    train(model, optimizer, EPOCHS)
    assert torch.equal(flat(model), plain_loop(lambda params: MEMBERS[name](groups_like_timm(params))))
    assert relative_difference(flat(model), plain_loop(adamw)) > 1e-3


def train(model, optimizer, epochs):
    for x, y in [*batches()] * epochs:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


# ---- torchtitan ----------------------------------------------------------------------------------------------------


class OptimizersContainer(Optimizer):
    """The layout of torchtitan's container: an optimizer for each part of the model, and flat states."""

    options = StateDictOptions(flatten_optimizer_state_dict=True)

    def __init__(self, model_parts, optimizer_cls, optimizer_kwargs):
        self.model_parts = model_parts
        parameters = [[p for p in part.parameters() if p.requires_grad] for part in model_parts]
        self.optimizers = [optimizer_cls(params, **optimizer_kwargs) for params in parameters]
        super().__init__([p for params in parameters for p in params], optimizer_kwargs)

    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)

    def zero_grad(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)

    def state_dict(self):
        get = functools.partial(get_optimizer_state_dict, options=self.options)
        states = map(get, self.model_parts, self.optimizers)
        return {key: value for state in states for key, value in state.items()}

    def load_state_dict(self, state_dict):
        for part, optimizer in zip(self.model_parts, self.optimizers, strict=True):
            set_optimizer_state_dict(part, optimizer, state_dict, options=self.options)


class WhitenedContainer(OptimizersContainer):
    """The container for whitened optimizers: a state for each part, not flat (docs/integrations.md)."""

    def state_dict(self):
        states = map(get_optimizer_state_dict, self.model_parts, self.optimizers)
        return {str(number): state for number, state in enumerate(states)}

    def load_state_dict(self, state_dict):
        for number, (part, optimizer) in enumerate(zip(self.model_parts, self.optimizers, strict=True)):
            set_optimizer_state_dict(part, optimizer, state_dict[str(number)])


CONTAINERS = {
    "ggt": lambda parts: OptimizersContainer(parts, GGT, {"lr": 1e-2, "window": 3}),
    "whiten": lambda parts: WhitenedContainer(parts, Whitened, {"lr": 1e-2, "whitening": {"window": 3}}),
}


class Parts:
    """A model in two parts, as stages of a pipeline are, with names that say which part a parameter belongs to."""

    def __init__(self):
        self.model = small_model()
        self.parts = [torch.nn.ModuleDict({"first": self.model[0]}), torch.nn.ModuleDict({"second": self.model[2]})]


@pytest.mark.parametrize("name", MEMBERS)
def test_torchtitan_container_resumes_bitwise(name, tmp_path):
    first = Parts()
    container = CONTAINERS[name](first.parts)
    train(first.model, container, 1)
    dcp.save({"optimizer": container.state_dict()}, checkpoint_id=tmp_path)
    again = Parts()
    again.model.load_state_dict(first.model.state_dict())
    resumed = CONTAINERS[name](again.parts)
    state = {"optimizer": resumed.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path)
    resumed.load_state_dict(state["optimizer"])
    for parts, optimizer in ((first, container), (again, resumed)):
        train(parts.model, optimizer, 1)
    assert torch.equal(flat(first.model), flat(again.model))
    assert relative_difference(flat(first.model), plain_loop(adamw)) > 1e-3


def test_the_flat_state_of_torchtitan_refuses_a_whitened_optimizer():
    parts = Parts()
    container = OptimizersContainer(parts.parts, Whitened, {"lr": 1e-2})
    train(parts.model, container, 1)
    with pytest.raises(ValueError, match="flatten_optimizer_state_dict=True"):
        container.load_state_dict(container.state_dict())
