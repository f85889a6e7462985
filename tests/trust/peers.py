"""The peers through the same tests: who survives what.

Every peer has two weight matrices, because torch's Muon takes nothing else. A peer whose package is not installed is
left out. A test returns words that go into the table of docs/trust.md. None of the peers but ours promises to refuse a
damaged state: torch leaves that to the user by design.
"""

import copy
import importlib.util
import io
import math
import multiprocessing
import os
import pickle
import random
import signal
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from importlib.metadata import version
from pathlib import Path

import torch
from damage import damaged
from mutations import alike
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import whiten

SHAPES = ((4, 3), (5, 4))


def soap(parameters):
    from pytorch_optimizer import SOAP

    return SOAP(parameters, lr=3e-3)


def shampoo(parameters):
    from pytorch_optimizer import Shampoo

    return Shampoo(parameters, lr=1e-3)


def torchzero_ggt(parameters):
    import torchzero

    return torchzero.Optimizer(parameters, torchzero.m.GGT(history_size=6), torchzero.m.LR(1e-2))


PEERS = {
    "torch_ggt.GGT": (None, lambda parameters: GGT(parameters, window=6)),
    "whiten(AdamW)": (None, lambda parameters: whiten(torch.optim.AdamW(parameters), window=6)),
    "torch AdamW": (None, torch.optim.AdamW),
    "torch Muon": (None, torch.optim.Muon),
    "SOAP": ("pytorch_optimizer", soap),
    "Shampoo": ("pytorch_optimizer", shampoo),
    "torchzero GGT": ("torchzero", torchzero_ggt),
}


def installed():
    return [name for name, (package, _) in PEERS.items() if package is None or importlib.util.find_spec(package)]


def versions():
    packages = ("torch", "pytorch_optimizer", "torchzero")
    return {package: version(package) for package in packages if importlib.util.find_spec(package)}


# ---- runs ------------------------------------------------------------------------------------------------------------


def build(name, steps=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = PEERS[name][1](parameters)
    train(parameters, optimizer, steps, seed + 1)
    return parameters, optimizer


def train(parameters, optimizer, steps, seed, change=None):
    """Steps with gradients of noise; ``change`` is applied to the first gradient."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for place, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            if change is not None and place == 0:
                parameter.grad = change(parameter.grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()


def values(parameters):
    return [p.detach().clone() for p in parameters]


def finite(parameters):
    return all(bool(p.isfinite().all()) for p in parameters)


def tensors(state):
    """(container, key) of every tensor in a state, without the parameters that torchzero keeps there."""
    pairs = state.items() if hasattr(state, "items") else enumerate(state)
    for key, value in list(pairs):
        if torch.is_tensor(value):
            yield state, key
        elif key not in ("params", "param_groups") and (hasattr(value, "items") or isinstance(value, (list, deque))):
            yield from tensors(value)


# ---- gradients and options -------------------------------------------------------------------------------------------


def one_bad_gradient(name, change):
    """What one bad gradient does, and whether the run goes on."""
    parameters, optimizer = build(name, 8)
    before = values(parameters)
    try:
        train(parameters, optimizer, 1, 50, change)
        still = alike(before, values(parameters))
        train(parameters, optimizer, 5, 51)
    except Exception as error:
        return f"raises {type(error).__name__}"
    if not finite(parameters):
        return "parameters NaN for ever"
    end = values(parameters)
    train(parameters, optimizer, 20, 52)
    moves = sum(float((one - other).norm()) for one, other in zip(end, values(parameters), strict=True))
    words = "step skipped" if still else "finite"
    return words if moves > 1e-4 else f"{words}, then stands still"


def put(number):
    def change(gradient):
        gradient[0, 0] = number
        return gradient

    return change


def zero_gradient(name):
    parameters, optimizer = build(name)
    try:
        train(parameters, optimizer, 2, 50, torch.zeros_like)
        train(parameters, optimizer, 3, 50)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "finite" if finite(parameters) else "parameters NaN"


def missing_gradient(name):
    parameters, optimizer = build(name, 3)
    before = values(parameters)
    try:
        train(parameters, optimizer, 3, 50, lambda gradient: None)
        stays = alike(before[0], parameters[0].detach())
        train(parameters, optimizer, 3, 51)
    except Exception as error:
        return f"raises {type(error).__name__}"
    if not finite(parameters):
        return "parameters NaN"
    return "its parameter stays" if stays else "its parameter moves"


def lr_is_nan(name):
    parameters, optimizer = build(name, 3)
    before = values(parameters)
    for group in optimizer.param_groups:
        group["lr"] = math.nan
    try:
        train(parameters, optimizer, 1, 50)
    except (ValueError, TypeError):
        return "refused" if alike(before, values(parameters)) else "refused, parameters changed"
    return "not noticed, no effect" if finite(parameters) else "parameters NaN"


# ---- damaged states --------------------------------------------------------------------------------------------------


def dropped(found, rng):
    container, key = rng.choice(found)
    del container[key]


def nan_entry(found, rng):
    container, key = rng.choice([(c, k) for c, k in found if c[k].is_floating_point()])
    container[key] = torch.full_like(container[key], math.nan)


def wrong_shape(found, rng):
    container, key = rng.choice(found)
    container[key] = torch.cat([container[key].reshape(-1)] * 2)


def wrong_dtype(found, rng):
    container, key = rng.choice(found)
    container[key] = container[key].bfloat16()


def swapped(found, rng):
    """Two entries that have one shape change places."""
    pairs = [(a, b) for a in found for b in found if a is not b and a[0][a[1]].shape == b[0][b[1]].shape]
    pairs = [(a, b) for a, b in pairs if not torch.equal(a[0][a[1]], b[0][b[1]])]
    if not pairs:
        return False
    (one, i), (other, j) = rng.choice(pairs)
    one[i], other[j] = other[j], one[i]
    return True


MUTATIONS = (dropped, nan_entry, wrong_shape, wrong_dtype, swapped)


def outcome(name, wrong, whole):
    """What loading a wrong state does; ``whole`` is a copy of the right one."""
    parameters, optimizer = build(name, 3, 500)
    before = copy.deepcopy(optimizer.state_dict())
    start = values(parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            optimizer.load_state_dict(wrong)
        except Exception:
            untouched = alike(start, values(parameters)) and same_state(before, optimizer.state_dict())
            return "refused" if untouched else "refused, live state changed"
    twins, twin = build(name, 3, 500)
    twin.load_state_dict(whole)
    train(twins, twin, 5, 900)
    try:
        train(parameters, optimizer, 5, 900)
    except Exception:
        return "accepted, error later"
    if not finite(parameters):
        return "accepted, parameters NaN"
    return "harmless" if alike(values(parameters), values(twins)) else "accepted, training changed"


def same_state(one, other):
    found = [[c[k] for c, k in tensors(state)] for state in (one, other)]
    return len(found[0]) == len(found[1]) and alike(*found)


def mutated_states(name, number):
    counts, rng = Counter(), random.Random(0)
    for mutate in MUTATIONS:
        for _ in range(number):
            whole = build(name, 8, 10)[1].state_dict()
            wrong, right = copy.deepcopy(whole), copy.deepcopy(whole)
            if mutate(list(tensors(wrong)), rng) is not False:
                counts[outcome(name, wrong, right)] += 1
    return dict(counts)


def damaged_files(name, number):
    counts, rng, file = Counter(), random.Random(1), io.BytesIO()
    whole = build(name, 8, 10)[1].state_dict()
    torch.save(whole, file)
    safe = name != "torchzero GGT"  # its states are Python objects, which weights_only=True does not load
    for _ in range(number):
        _, data = damaged(file.getvalue(), rng)
        try:
            stored = torch.load(io.BytesIO(data), weights_only=safe)
        except Exception:
            counts["torch.load raises"] += 1
            continue
        counts[outcome(name, stored, copy.deepcopy(whole))] += 1
    return dict(counts)


# ---- processes, threads, copies --------------------------------------------------------------------------------------

STEPS = 25


def save(path, parameters, optimizer, done):
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save({"parameters": values(parameters), "optimizer": optimizer.state_dict(), "done": done}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def run(name, path):
    """Train to the end, from the file if there is one, and save after every step."""
    parameters, optimizer = build(name, 0)
    done = 0
    if path.exists():
        stored = torch.load(path, weights_only=name != "torchzero GGT")
        optimizer.load_state_dict(stored["optimizer"])
        done = stored["done"]
        with torch.no_grad():
            for parameter, value in zip(parameters, stored["parameters"], strict=True):
                parameter.copy_(value)
    for step in range(done, STEPS):
        train(parameters, optimizer, 1, 1000 + step)
        save(path, parameters, optimizer, step + 1)
    return values(parameters)


def killed_and_resumed(name, number):
    counts, rng = Counter(), random.Random(2)
    with tempfile.TemporaryDirectory() as folder:
        end = run(name, Path(folder, "whole.pt"))
        for turn in range(number):
            path = Path(folder, f"{turn}.pt")
            child = os.fork()
            if child == 0:
                try:
                    run(name, path)
                finally:
                    os._exit(0)
            while not path.exists():
                time.sleep(1e-3)
            time.sleep(rng.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            try:
                counts["resumed bitwise" if alike(run(name, path), end) else "resumed otherwise"] += 1
            except Exception as error:
                counts[f"raises {type(error).__name__}"] += 1
    return dict(counts)


def goes_on(name, copier):
    """Whether a copy of (parameters, optimizer) goes on as the original does."""
    parameters, optimizer = build(name, 8)
    try:
        twins, twin = copier((parameters, optimizer))
        for current, stepper in ((parameters, optimizer), (twins, twin)):
            train(current, stepper, 5, 70)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "goes on bitwise" if alike(values(parameters), values(twins)) else "goes on otherwise"


def in_threads(name):
    """Four optimizers in four threads, against four in turn."""
    alone = []
    for seed in range(4):
        parameters, _ = build(name, 30, seed)
        alone.append(values(parameters))
    together = [None] * 4

    def work(seed):
        together[seed] = values(build(name, 30, seed)[0])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "bitwise as in turn" if alike(alone, together) else "otherwise than in turn"


def _child(name, data, sender):
    try:
        torch.set_num_threads(1)
        parameters, optimizer = build(name, 3, 500)
        stored = torch.load(io.BytesIO(data), weights_only=name != "torchzero GGT")
        optimizer.load_state_dict(stored["optimizer"])
        with torch.no_grad():
            for parameter, value in zip(parameters, stored["parameters"], strict=True):
                parameter.copy_(value)
        train(parameters, optimizer, 5, 70)
        sender.send_bytes(pickle.dumps([p.detach().tolist() for p in parameters]))
    except Exception as error:
        sender.send_bytes(pickle.dumps(type(error).__name__))


def in_a_new_process(name):
    parameters, optimizer = build(name, 8)
    file = io.BytesIO()
    torch.save({"parameters": values(parameters), "optimizer": optimizer.state_dict()}, file)
    train(parameters, optimizer, 5, 70)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, file.getvalue(), sender))
    process.start()
    found = pickle.loads(receiver.recv_bytes()) if receiver.poll(120) else "nothing"
    process.join(10)
    if isinstance(found, str):
        return f"raises {found}"
    return "goes on bitwise" if found == [p.detach().tolist() for p in parameters] else "goes on otherwise"


def compare(number):
    """Every test on every peer; ``number`` is how many damages of each kind are tried."""
    tests = {
        "one NaN in a gradient": lambda name: one_bad_gradient(name, put(math.nan)),
        "one Inf in a gradient": lambda name: one_bad_gradient(name, put(math.inf)),
        "one gradient of 1e38": lambda name: one_bad_gradient(name, lambda gradient: gradient.sign() * 1e38),
        "two gradients of zeros at the start": zero_gradient,
        "a gradient that is None": missing_gradient,
        "lr = NaN in mid-run": lr_is_nan,
        "damaged states": lambda name: mutated_states(name, number),
        "damaged files": lambda name: damaged_files(name, 5 * number),
        "kill -9, resumed from its file": lambda name: killed_and_resumed(name, number),
        "deepcopy": lambda name: goes_on(name, copy.deepcopy),
        "pickle": lambda name: goes_on(name, lambda both: pickle.loads(pickle.dumps(both))),
        "loaded in a new process (spawn)": in_a_new_process,
        "four in four threads": in_threads,
    }
    return {what: {name: test(name) for name in installed()} for what, test in tests.items()}
