"""Damaged files, and processes that are killed: what a run that resumes from them does."""

import mmap
import os
import random
import signal
import time
import traceback
import warnings
from collections import Counter

import torch
from mutations import alike, build, train

MEMBER = "ggt_decayed"


def save(path, parameters, optimizer):
    """The recipe of docs/trust.md: a file is whole, or it is not there."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save({"parameters": [p.detach() for p in parameters], "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load(path, parameters, optimizer):
    stored = torch.load(path, weights_only=True)
    optimizer.load_state_dict(stored["optimizer"])
    with torch.no_grad():
        for parameter, value in zip(parameters, stored["parameters"], strict=True):
            parameter.copy_(value)


# ---- damaged files ---------------------------------------------------------------------------------------------------


def damaged(data, rng):
    """One byte flipped, some bytes changed, a run of zeros, or a cut."""
    kind = rng.choice(("bit", "byte", "bytes", "zeros", "cut", "cut"))
    if kind == "cut":
        return kind, data[: rng.randrange(len(data))]
    found = bytearray(data)
    for _ in range(5 if kind == "bytes" else 1):
        place = rng.randrange(len(found))
        if kind == "zeros":
            found[place : place + 64] = bytes(len(found[place : place + 64]))
        else:
            found[place] ^= 1 << rng.randrange(8) if kind == "bit" else rng.randrange(1, 256)
    return kind, bytes(found)


def outcome_of_file(path, whole):
    """What loading the optimizer's state from a damaged file does."""
    parameters, optimizer = build(MEMBER, 3, 500)
    before = optimizer.state_dict()
    try:
        stored = torch.load(path, weights_only=True)
    except Exception:
        return "torch.load raises"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            optimizer.load_state_dict(stored)
        except (ValueError, TypeError, RuntimeError):
            return "refused" if alike(before, optimizer.state_dict()) else "VIOLATION: refused, state changed"
        except Exception as error:
            return f"VIOLATION: {type(error).__name__}"
    twins, twin = build(MEMBER, 3, 500)
    twin.load_state_dict(whole)
    train(twins, twin, 5, 900)
    try:
        train(parameters, optimizer, 5, 900)
    except Exception as error:
        return f"VIOLATION: later {type(error).__name__}"
    if alike(parameters, twins):
        return "harmless"
    return "loaded with a warning" if any("options" in str(w.message) for w in warned) else "VIOLATION: silent"


def outcomes_of_damage(folder, number, seed=0):
    """The outcomes of ``number`` damages to the file of a small optimizer state, counted."""
    rng, found = random.Random(seed), Counter()
    whole = build(MEMBER, 4, 10)[1].state_dict()
    path = folder / "whole.pt"
    torch.save(whole, path)
    data = path.read_bytes()
    for turn in range(number):
        _, wrong = damaged(data, rng)
        path.write_bytes(wrong)
        outcome = outcome_of_file(path, whole)
        found[outcome] += 1
        if outcome.startswith("VIOLATION"):
            print(f"file {turn} of seed {seed}: {outcome}")
            (folder / f"violation-{turn}.pt").write_bytes(wrong)
    return found


# ---- kill -9 --------------------------------------------------------------------------------------------------------

STEPS, BETWEEN, STEP, SAVE = 40, 0, 1, 2
PHASES = {BETWEEN: "between", STEP: "in the step", SAVE: "in the save"}


def run(path, phase=None):
    """Train to the end, from the last file if there is one, and save after every step."""
    phase = bytearray(2) if phase is None else phase
    parameters, optimizer = build(MEMBER, 0, 10)
    done = 0
    if path.exists():
        load(path, parameters, optimizer)
        done = optimizer.param_groups[0]["step_of_run"]
    for step in range(done, STEPS):
        phase[0] = STEP
        train(parameters, optimizer, 1, 1000 + step)
        phase[0] = SAVE
        optimizer.param_groups[0]["step_of_run"] = step + 1  # whatever stands in a param group travels with the state
        save(path, parameters, optimizer)
        phase[0] = BETWEEN
        phase[1] = step + 1
        time.sleep(0.001)
    return parameters


def killed(path, rng):
    """Start a run in another process and kill it in a chosen phase, at a chosen step; the phase in which it was."""
    shared = mmap.mmap(-1, 2)
    wanted, after = rng.choice(list(PHASES)), rng.randrange(1, STEPS - 5)
    child = os.fork()
    if child == 0:
        try:
            run(path, shared)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    while not (shared[1] >= after and shared[0] == wanted):
        time.sleep(rng.random() * 1e-4)
        if os.waitpid(child, os.WNOHANG)[0]:
            return "it had ended"
    time.sleep(rng.random() * 1e-3 * (wanted != BETWEEN))  # somewhere inside
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return PHASES[shared[0]]


def outcomes_of_kills(folder, number, seed=0):
    """The outcomes of ``number`` runs that were killed and resumed, counted by the phase of the kill."""
    rng, found = random.Random(seed), Counter()
    end = run(folder / "whole.pt")
    for turn in range(number):
        path = folder / f"{turn}.pt"
        phase = killed(path, rng)
        resumed = run(path)
        found[f"killed {phase}: {'resumed bitwise' if alike(resumed, end) else 'VIOLATION: changed'}"] += 1
    return found
