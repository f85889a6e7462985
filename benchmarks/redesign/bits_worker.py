"""Train by every set of options and write down all bits that come out; `bits` runs this once for each tree."""

import ctypes
import hashlib
import io
import sys
import traceback
import warnings
from pathlib import Path

import torch
from option_sets import OPTION_SETS
from paper_ggt import paper_ggt
from torch import nn
from trees import check_imported

import torch_ggt

SHAPES = ((12, 7), (12,), (3, 5, 4), (), (65,), (10, 1))
BATCH = 16


def digest(tensors):
    """The sha256 of dtypes, shapes and values."""
    total = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().resolve_conj().contiguous().cpu()
        total.update(f"{flat.dtype} {tuple(flat.shape)} ".encode())
        total.update(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
    return total.hexdigest()


def widened(tensors):
    """All values in one float64 vector on the CPU, which holds every dtype used here exactly."""
    real = [torch.view_as_real(t.detach()) if t.is_complex() else t.detach() for t in tensors]
    return torch.cat([t.double().flatten() for t in real]).cpu()


def make_model(case, device):
    """The six parameters, and the network they belong to if gradients come from a loss."""
    torch.manual_seed(0)
    if case.loss:
        layers = (nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 2))
        model = nn.Sequential(*layers).to(device, case.dtypes[0])
        return list(model.parameters()), model
    dtypes = [case.dtypes[index % len(case.dtypes)] for index in range(len(SHAPES))]
    complex_ones = [torch.complex64 if dtype.is_complex else torch.float32 for dtype in dtypes]
    values = [torch.randn(shape, dtype=dtype) for shape, dtype in zip(SHAPES, complex_ones, strict=True)]
    return [nn.Parameter(value.to(device, dtype)) for value, dtype in zip(values, dtypes, strict=True)], None


def make_optimizer(case, parameters):
    half = len(parameters) // 2
    second = {"params": parameters[half:], "lr": 3e-3, "weight_decay": 0.05}
    groups = [{"params": parameters[:half]}, second] if case.two_groups else parameters
    return paper_ggt(groups, **case.options)


def make_schedule(case, optimizer, steps):
    if case.one_cycle:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.03, total_steps=steps + 1)
    return None


def set_gradients(case, parameters, model, step):
    """The gradients of one step, before some of them are taken away."""
    generator = torch.Generator().manual_seed(step)
    if model is not None:
        x = torch.randn(BATCH, 7, generator=generator).to(parameters[0])
        y = torch.randn(BATCH, 2, generator=generator).to(parameters[0])
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        return
    scale = 10 ** float(torch.randn((), generator=generator))
    for p in parameters:
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype if p.is_complex() else torch.float32)
        p.grad = (scale * noise).to(p)


def spoil_gradients(case, parameters, step):
    """Take gradients away, or make them nonfinite, at the steps where the case says so."""
    if case.nonfinite and step % 23 == 11:
        parameters[1].grad.view(-1)[step % 12] = torch.inf if step % 2 else torch.nan
    if case.missing:
        for index, p in enumerate(parameters):
            late = index == 4 and step < 30
            if late or (step + index) % 5 == 0 or step % 40 == 7:
                p.grad = None


def reload(case, optimizer, parameters):
    """A new optimizer with the state of the old one, by way of torch.save."""
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    fresh = make_optimizer(case, parameters)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


def run(case, steps, device):
    """The digest and the values of all parameters after every step, and the state after the last."""
    parameters, model = make_model(case, device)
    optimizer = make_optimizer(case, parameters)
    schedule = make_schedule(case, optimizer, steps)
    digests, values = [], []
    for step in range(steps):
        set_gradients(case, parameters, model, step)
        spoil_gradients(case, parameters, step)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if case.saved and step + 1 == steps // 2:
            optimizer = reload(case, optimizer, parameters)
        digests.append(digest(parameters))
        values.append(widened(parameters))
    columns = [(str(p.dtype).removeprefix("torch."), p.numel() * (1 + p.is_complex())) for p in parameters]
    return {
        "digests": digests,
        "values": torch.stack(values),
        "columns": columns,  # (dtype, how many columns of the values) for each parameter
        "state": describe_state(optimizer),
    }


def describe_state(optimizer):
    """{"parameter 0, window": (digest, values)} for all that is saved."""
    found = {}
    for index, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            if key == "sums":  # checksums of what else is saved; older versions have none
                continue
            tensor = value if isinstance(value, torch.Tensor) else None
            text = repr(value) if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {digest([tensor])}"
            found[f"parameter {index}, {key}"] = (text, None if tensor is None else widened([tensor]))
    return found


def main(folder, steps, device, part, parts):
    """Every ``parts``-th set from number ``part`` on; each outcome goes into a file of its own."""
    check_imported(torch_ggt)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # GGT warns of the steps that it skips
    for number, case in enumerate(OPTION_SETS.values()):
        if number % int(parts) != int(part):
            continue
        try:
            outcome = run(case, int(steps), torch.device(device))
        except Exception:
            outcome = {"error": traceback.format_exc()}
        unfinished = Path(folder) / f"{number}.unfinished"
        torch.save(outcome, unfinished)
        unfinished.rename(Path(folder) / f"{number}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
