"""What people do with an optimizer besides stepping: hooks, wrappers, removed parameters, options of others."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import torch_ggt
from torch_ggt import GGT, RMSprop, Whitening, param_groups, whiten
from torch_ggt.solver import apply_inverse_root, coefficients


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def step(model, *optimizers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(torch.randn(8, 4, generator=generator)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def window_of(optimizer):
    return getattr(optimizer, "whitening", optimizer)


# ---- hooks of the user ----------------------------------------------------------------------------------------------


MAKERS = {
    "GGT": lambda p: GGT(p, window=4),
    "whiten(AdamW)": lambda p: whiten(torch.optim.AdamW(p), window=4),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_hooks_that_wrap_the_state_see_what_the_user_saves(make):
    model = model_of()
    optimizer = make(model.parameters())
    for number in range(6):
        step(model, optimizer, seed=number)
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, saved: {"wrapped": saved})
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: saved["wrapped"])
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(len(window_of(o).state)))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [4]  # the window is there when the user's hook runs
    step(model, optimizer, seed=7)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_hook_that_moves_state_by_names_moves_the_window_or_is_refused(make):
    """The recipe of torch's documentation: state follows the name of its parameter."""
    model = model_of()
    optimizer = make(list(model.named_parameters()))
    for number in range(6):
        step(model, optimizer, seed=number)
    again = make(list(model.named_parameters())[::-1])

    def by_name(o, saved):
        names = saved["param_groups"][0]["param_names"]
        order = [names.index(name) for name in o.state_dict()["param_groups"][0]["param_names"]]
        return {**saved, "state": {new: copy.copy(saved["state"][old]) for new, old in enumerate(order)}}

    handle = again.register_load_state_dict_pre_hook(by_name)
    with pytest.raises(ValueError, match="a hook that moves state must pop 'sums' from it"):
        again.load_state_dict(optimizer.state_dict())
    handle.remove()

    def without_sums(o, saved):
        moved = by_name(o, saved)
        for entry in moved["state"].values():
            entry.pop("sums", None), entry.pop("whiten_sums", None)
        return moved

    again.register_load_state_dict_pre_hook(without_sums)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.load_state_dict(optimizer.state_dict())
    for parameter in model.parameters():
        mine, theirs = (window_of(each).state[parameter]["window"] for each in (again, optimizer))
        assert torch.equal(mine, theirs)


# ---- what leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*MAKERS.values(), lambda p: RMSprop(p, window=4)], ids=[*MAKERS, "RMSprop"])
def test_the_first_parameter_is_not_special(make):
    """Its group is removed, or its state is reset; the rows of the other parameters go on."""
    model = model_of()
    optimizer = make([{"params": [p]} for p in model.parameters()])
    for number in range(6):
        step(model, optimizer, seed=number)
    first, second = list(model.parameters())[:2]
    rows = window_of(optimizer).state[second]["window"].clone()
    del optimizer.param_groups[0]
    del optimizer.state[first]
    step(model, optimizer, seed=8)
    now = window_of(optimizer).state[second]["window"]
    assert sum(torch.equal(a, b) for a, b in zip(now, rows, strict=True)) == 3  # one row is new
    state = window_of(optimizer).state
    gram = next(entry["gram"] for entry in state.values() if "gram" in entry)
    wide = torch.cat([state[p]["window"].reshape(4, -1) for p in list(model.parameters())[1:]], 1).double()
    torch.testing.assert_close(gram, wide @ wide.T, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_state_that_is_saved_or_copied_right_after_a_parameter_left_is_whole(make):
    model = model_of()
    optimizer = make(model.parameters())
    for number in range(6):
        step(model, optimizer, seed=number)
    first, *others = model.parameters()
    optimizer.param_groups[0]["params"].remove(first)
    del optimizer.state[first]
    twin = copy.deepcopy(optimizer)
    again = make(others)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, seed=8)
    for p, q in zip(others, twin.param_groups[0]["params"], strict=True):
        q.grad = torch.ones_like(p)
    twin.step()  # it has a whole state, too
    for other in others:
        assert torch.equal(
            window_of(again).state[other]["window"][:-2], window_of(optimizer).state[other]["window"][:-2]
        )


def test_parameters_leave_in_every_order():
    """Between steps without gradients, from group to group, one after the other: no row is lost, nobody warns."""

    def after(change, **options):
        parameters = [nn.Parameter(torch.randn(6)) for _ in range(4)]
        optimizer = GGT([{"params": parameters[:2]}, {"params": parameters[2:]}], window=4, **options)

        def go(*indices):
            optimizer.zero_grad()
            for index in indices:
                parameters[index].grad = torch.randn(6)
            optimizer.step()

        for _ in range(5):
            go(0, 1, 2, 3)
        change(*(group["params"] for group in optimizer.param_groups), go)
        go(0, 1, 2, 3)
        return int(max(entry["count"].max() for entry in optimizer.state.values() if "count" in entry))

    assert after(lambda one, _, go: (one.pop(0), go(), one.pop(0))) == 4
    assert after(lambda one, two, _: two.append(one.pop(0)), scope="group") == 4
    assert after(lambda _, two, go: (two.pop(0), go(0, 1)), scope="group") == 4
    assert after(lambda one, two, _: (one.pop(0), two.pop(0)), scope="parameter") == 4


def test_a_copy_of_one_of_two_that_share_a_window_keeps_both():
    model = model_of()
    one, other = whiten(torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(model[2].parameters(), 0.1))
    step(model, one, other)
    copied = copy.deepcopy(one)
    gc.collect()
    assert len(copied.whitening.param_groups) == 2
    del other
    gc.collect()
    step(model, one)
    assert len(one.whitening.param_groups) == 2


def test_an_optimizer_that_is_deleted_frees_its_window():
    model = model_of()
    step(model, whiten(torch.optim.AdamW(model.parameters())))  # the first step of a process makes cycles of its own
    optimizer = whiten(torch.optim.AdamW(model.parameters()), window=4)
    step(model, optimizer)
    gc.collect()
    gc.disable()
    try:
        window = weakref.ref(optimizer.whitening)
        del optimizer
        assert window() is None
    finally:
        gc.enable()


# ---- options and optimizers of others -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"maximize": True}, {"sgd_scale": 1.0}, {"finish": "polar"}, {"lr": 3.0}])
def test_whitening_leaves_options_of_a_step_to_the_optimizer_behind_it(options):
    found = []
    for group in ({}, options):
        model = model_of()
        whitening = Whitening([{"params": list(model.parameters()), **group}], window=4)
        for number in range(3):
            model.zero_grad()
            model(torch.randn(8, 4, generator=torch.Generator().manual_seed(number))).square().mean().backward()
            whitening()
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))


def test_groups_that_are_sorted_for_a_finish_are_whitened_alike():
    model = model_of()
    whitening = Whitening(param_groups(model), window=4)
    assert {group["finish"] for group in whitening.param_groups} == {"none"}


def test_a_relative_keeps_its_rule():
    with pytest.raises(ValueError, match="RMSprop: a param group cannot have history='momentum'"):
        RMSprop([{"params": list(model_of().parameters()), "history": "momentum"}])


class Counting(torch.optim.AdamW):
    """It keeps something under no parameter, as MADGRAD does."""

    def step(self, closure=None):
        self.state["k"] = self.state.get("k", torch.zeros(1)) + 1
        return super().step(closure)


def test_state_that_belongs_to_no_parameter_is_loaded_as_it_is():
    model, other = model_of(), model_of()
    optimizer, again = (whiten(Counting(m.parameters()), window=4) for m in (model, other))
    step(model, optimizer)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.load_state_dict(model.state_dict())
    assert again.state["k"] == 1
    for each, own in ((model, optimizer), (other, again)):
        step(each, own, seed=1)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    lost = torch.optim.AdamW(model.parameters()).state_dict()
    lost["state"] = {9: {}}  # a parameter that no group names
    with pytest.raises(ValueError, match="The file is damaged"):
        again.load_state_dict(lost)


def test_a_wrapper_without_hooks_is_refused_and_left_as_it_was():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner

        param_groups = property(lambda self: self.inner.param_groups)
        defaults = property(lambda self: self.inner.defaults)
        state = property(lambda self: self.inner.state)

    inner = torch.optim.AdamW(model_of().parameters())
    with pytest.raises(TypeError, match="Wrapper wraps an optimizer and has no hooks; whiten the optimizer inside it"):
        whiten(Wrapper(inner))
    assert not any(key.startswith("whiten") for key in [*inner.defaults, *inner.param_groups[0]])


def test_an_optimizer_that_steps_every_second_round_cannot_share_a_window():
    """Its raw gradients would be added to whitened ones."""
    model = model_of()
    often, _ = whiten(torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.SGD(model[2].parameters(), 0.1))
    for number in range(2):
        often.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if number == 0:
            often.step()
        else:
            with pytest.raises(RuntimeError, match="has not stepped since its gradients were whitened"):
                often.step()


def test_parameters_of_fsdp1_are_refused_on_several_ranks(monkeypatch):
    model = model_of()
    for parameter in model.parameters():
        parameter._fsdp_flattened = True
    step(model, GGT(model.parameters()))  # on one rank they are whole
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(TypeError, match=r"parameters of FullyShardedDataParallel \(FSDP1\) do not say"):
        step(model, GGT(model.parameters()))


def test_a_copy_of_the_state_has_a_rate_of_its_own():
    model = model_of()
    optimizer = GGT(model.parameters(), lr=torch.tensor(0.1), capturable=False)
    step(model, optimizer)
    saved = optimizer.state_dict()
    optimizer.param_groups[0]["lr"].mul_(0.5)
    assert saved["param_groups"][0]["lr"] == pytest.approx(0.1)


# ---- small functions, and warnings ----------------------------------------------------------------------------------


def test_public_functions_of_the_solver_keep_their_word():
    rows = torch.randn(5, 3)
    moment = (rows @ rows.T).float()
    for solver in ("eigh", "cholesky"):
        assert coefficients(moment, torch.eye(5)[0], eps=0.0, jitter=1e-6, solver=solver).dtype == torch.float64
    with pytest.raises(ValueError, match="eps ≥ 0"):
        coefficients(moment, torch.eye(5)[0], eps=-1.0, jitter=1e-6)
    with pytest.raises(ValueError, match="must be real"):
        apply_inverse_root(rows.to(torch.complex64), rows[0], eps=0.0, jitter=1e-6)


def test_a_warning_names_the_line_of_the_user_whatever_stands_between():
    model = model_of()
    optimizer = GGT(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it wraps ``step``
    model(torch.full((8, 4), torch.nan)).sum().backward()
    with pytest.warns(UserWarning, match="skipped a step") as found:
        optimizer.step()
    assert [each.filename for each in found] == [__file__]
    assert torch_ggt.__file__ not in {each.filename for each in found}


def test_a_parameter_without_a_shape_has_no_polar_factor_yet():
    lazy = nn.LazyLinear(3)
    with pytest.raises(ValueError, match=r"finish='polar': parameter 0 .* has no shape yet; run the model once before"):
        GGT(lazy.parameters(), finish="polar")
    assert GGT(lazy.parameters()).param_groups[0]["finish"] == "adam"


def test_a_model_or_an_optimizer_in_place_of_parameters():
    model = model_of()
    for kind in (GGT, Whitening, RMSprop):
        with pytest.raises(TypeError, match=r"give the parameters of the Sequential, as in model\.parameters\(\)"):
            kind(model)
    with pytest.raises(TypeError, match=r"to whiten the AdamW, write whiten\(optimizer\)"):
        Whitening(torch.optim.AdamW(model.parameters()))
