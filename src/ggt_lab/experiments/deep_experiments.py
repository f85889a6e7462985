"""The paper's deep experiments: optimizers, grids, lengths, claims.

The paper's own baselines decide its claims. AdamW, Muon and SOAP are newer than the paper, and GGT with a matrix for
each parameter is ours. These four are tuned and shown beside the others, and no claim of the paper depends on them.
"""

from collections.abc import Mapping
from typing import Any

from ggt_lab.experiments.claim import Claim
from ggt_lab.experiments.curve_claims import AlikeAlong, EarlyLead, FastestAfterDecays, LowestAlong
from ggt_lab.experiments.deep_race import DeepRace, Variant
from ggt_lab.experiments.end_claims import AtMost, Compared, GapAtEnd, LevelAtEnd
from ggt_lab.experiments.spectra_over_training import SpectraOverTraining
from ggt_lab.experiments.wall_clock_claims import FirstInSeconds

__all__ = ["DEEP_EXPERIMENTS"]

# Rows in bfloat16 hide eigenvalues below 1.5e-5 of their sum: spectra are recorded from float32 rows.
_GGT_FLOAT32 = "PaperGGT(window=200, window_dtype='float32', adjust_lr_fn='original')"
_SPECS = {
    "GGT": "PaperGGT(window=200, window_dtype='bfloat16', adjust_lr_fn='original')",
    "Adam": "Adam",
    "AdaGrad": "Adagrad",
    "SGD": "SGD(momentum=0.9)",
    # The paper: "with the same window parameters" as Adam. So β₂ = 0.999, and momentum 0.9 where there is momentum.
    "RMSprop": "RMSprop(alpha=0.999, momentum=0.9)",
    "Adadelta": "Adadelta(rho=0.999)",
    "AdamW": "AdamW",
    "Muon": "MuonAndAdamW",
    "SOAP": "pytorch_optimizer.SOAP",
    "GGT by parameter": "PaperGGT(window=200, window_dtype='bfloat16', adjust_lr_fn='original', scope='parameter')",
}
_BASELINES = ("Adam", "AdaGrad", "SGD")
_ALL_BASELINES = (*_BASELINES, "RMSprop", "Adadelta")
_NEWER = ("AdamW", "Muon", "SOAP")
_EVERYBODY_ELSE = ("GGT", *_ALL_BASELINES, *_NEWER)  # all entrants but GGT by parameter

Entrants = dict[str, tuple[str, tuple[float, ...]]]


def _entrants(rates: Mapping[str, tuple[float, ...]]) -> Entrants:
    """Each entrant with its spec and its first grid of learning rates."""
    return {name: (_SPECS[name], grid) for name, grid in rates.items()}


_PERPLEXITY = _entrants(
    {"GGT": (2.0, 3.0, 4.5), "Adam": (0.002, 0.004, 0.008), "AdaGrad": (0.005, 0.01, 0.02), "SGD": (0.3, 1.0, 3.0)}
)
_PERPLEXITY_ALL = _PERPLEXITY | _entrants(
    {
        "RMSprop": (0.0001, 0.0003, 0.001),
        "Adadelta": (1.0, 3.0, 10.0),
        "AdamW": (0.002, 0.004, 0.008),
        "Muon": (0.001, 0.003, 0.01),
        "SOAP": (0.001, 0.003, 0.01),
        "GGT by parameter": (0.35, 0.53, 0.8, 1.2, 1.8),
    }
)
# Grids around the best rates of R1; R2 and R3 use them.
_LOW_PERPLEXITY = {name: _PERPLEXITY_ALL[name] for name in ("GGT", *_ALL_BASELINES)} | _entrants(
    {"GGT": (3.0, 4.5, 6.75), "AdaGrad": (0.01, 0.02, 0.04), "RMSprop": (0.0003, 0.001, 0.003)}
)
_WORDS = _PERPLEXITY | _entrants({"GGT": (4.5, 6.75, 10.125), "Adam": (0.001, 0.002, 0.004)})
_IMAGES = _entrants(
    {
        **{"GGT": (0.3, 1.0, 3.0), "Adam": (0.0003, 0.001, 0.003), "AdaGrad": (0.003, 0.01, 0.03)},
        **{"SGD": (0.03, 0.1, 0.3), "RMSprop": (0.00003, 0.0001, 0.0003), "Adadelta": (0.3, 1.0, 3.0)},
        **{"AdamW": (0.0003, 0.001, 0.003), "Muon": (0.001, 0.003, 0.01), "SOAP": (0.001, 0.003, 0.01)},
        "GGT by parameter": (0.03, 0.1, 0.3),
    }
)
# Without batch normalization smaller steps are needed.
_VGG = _entrants(
    {
        "GGT": (0.03, 0.1, 0.3),
        "Adam": (0.0001, 0.0003, 0.001),
        "AdaGrad": (0.001, 0.003, 0.01),
        "SGD": (0.01, 0.03, 0.1),
    }
)
_TRANSFORMER = _PERPLEXITY | _entrants(
    {
        **{"GGT": (0.27, 0.4, 0.6), "Adam": (0.0003, 0.001, 0.003), "SGD": (0.03, 0.1, 0.3)},
        "GGT by parameter": (0.015, 0.03, 0.06),
    }
)


def _r3(model: str, where: str = "") -> FirstInSeconds:
    paper = "ahead in wall-clock throughout"
    return FirstInSeconds("R3", "GGT", _ALL_BASELINES, "validation_perplexity", model, paper, where=where)


_R1: list[Claim] = [
    *(
        LowestAlong("R1", "GGT", _BASELINES, key, "best for the first 50 epochs", first=first)
        for first in (1, 2)
        for key in ("validation_perplexity", "train_perplexity")
    ),
    GapAtEnd("R1", "GGT", "Adam", "validation_perplexity", 0.07, "0.09 lower after 500 epochs"),
    Compared("R1", "GGT", _NEWER, "validation_perplexity"),
    Compared("R1", "GGT by parameter", _EVERYBODY_ELSE, "validation_perplexity"),
    _r3("lstm-512-bf16"),
]
_R2: list[Claim] = [
    AtMost("R2", "GGT", "validation_perplexity", 2.45, "2.42 after 500 epochs"),
    AtMost("R2", "GGT", "validation_perplexity", 2.42, "2.42 after 500 epochs"),
    GapAtEnd("R2", "GGT", "Adam", "validation_perplexity", 0.0, "2.42 and 2.51 after 500 epochs"),
    _r3("lstm-512-bf16-256", "with batches of 256"),
]
_C1: list[Claim] = [
    LowestAlong("C1", "GGT", _BASELINES, "train_loss", "lowest training loss per epoch"),
    Compared("C1", "GGT", _NEWER, "train_loss"),
    Compared("C1", "GGT", _NEWER, "test_error"),
    LowestAlong("C1", "GGT by parameter", _ALL_BASELINES, "train_loss", "not compared: not the paper's GGT"),
    Compared("C1", "GGT by parameter", _EVERYBODY_ELSE, "train_loss"),
    Compared("C1", "GGT by parameter", _EVERYBODY_ELSE, "test_error"),
    GapAtEnd("C2", "SGD", "GGT", "test_error", 0.0, "SGD generalizes slightly best"),
    GapAtEnd("C2", "GGT", "SGD", "test_error", -0.002, "the gap is below 0.2 %"),
    GapAtEnd("C2", "Adam", "AdaGrad", "test_error", 0.005, "AdaGrad converges to a poor solution"),
    AlikeAlong("C2", ("Adam", "RMSprop", "Adadelta"), "train_loss", 0.1, "virtually identical when tuned"),
    *(
        GapAtEnd("C2", name, f"{name} fixed", "test_error", 0.005, "a fixed learning rate is significantly worse")
        for name in ("SGD", "GGT")
    ),
    *(
        GapAtEnd("C2", f"{name} low", name, "train_loss", 0.0, "a low learning rate can train better")
        for name in ("SGD", "GGT")
    ),
    *(
        GapAtEnd("C2", name, f"{name} low", "test_error", 0.03, "a low learning rate generalizes more than 3 % worse")
        for name in ("SGD", "GGT")
    ),
    *(
        FirstInSeconds("C3", "GGT", _BASELINES, key, "shake-shake-bf16", "no unconditional improvement", wins=False)
        for key in ("train_loss", "test_error")
    ),
]
_A1: list[Claim] = [
    GapAtEnd("A1", "GGT", "SGD", "test_error", -0.015, "about 1 % behind SGD at the end"),
    GapAtEnd("A1", "GGT", "Adam", "train_loss", 0.1, "diagonal methods fail to train"),
    GapAtEnd("A1", "GGT", "AdaGrad", "train_loss", 0.1, "diagonal methods fail to train"),
    FastestAfterDecays("A1", "GGT", _BASELINES, "train_loss", "GGT trains the most rapidly just after each decay"),
]
_A2: list[Claim] = [
    claim
    for key in ("train_perplexity", "validation_perplexity")
    for claim in (
        EarlyLead("A2", "GGT", "Adam", key, "an initial lead of GGT, then Adam wins"),
        GapAtEnd("A2", "Adam", "GGT", key, 0.0, "Adam wins in the end"),
        Compared("A2", "GGT by parameter", ("GGT", *_BASELINES), key),
    )
]
_R4: list[Claim] = [
    LevelAtEnd("R4", "GGT", "Adam", "validation_perplexity", 1.0, "level with Adam"),
    EarlyLead("R4", "GGT", "Adam", "validation_perplexity", "ahead only in the first ~20 epochs", until=(10, 30)),
]


def _recorded(
    title: str,
    problem: str,
    rates: tuple[float, ...],
    lengths: tuple[int, int],
    *,
    every: int,
    **options: Any,  # noqa: ANN401
) -> DeepRace:
    """A model of which E1 records the spectra while GGT trains it; ``lengths`` of the short and the full runs."""
    short, full = lengths
    entrants = {"GGT": (_GGT_FLOAT32, rates)}
    return DeepRace("E1", title, problem, entrants, tuning_epochs=short, epochs=full, spectrum_every=every, **options)


# One grid for both networks, from before the best rate of either was known. The best rates lie at its ends, and the
# grid is widened.
_RECORDED_IMAGES = (0.1, 0.3, 1.0)
_IN_PERPLEXITY, _IN_IMAGES = ("train_perplexity", "validation_perplexity"), ("train_loss", "test_error")

DEEP_EXPERIMENTS = (
    DeepRace(
        "R1",
        "PTB characters, 3-layer LSTM",
        "ptb-chars",
        _PERPLEXITY_ALL,
        tuning_epochs=10,  # 550 steps, because the batches are so large
        epochs=50,
        claims=_R1,
        keys=_IN_PERPLEXITY,
        model="lstm-512-bf16",
    ),
    # 3.5 times as many steps as R1: a lower perplexity, and a smaller lead over Adam.
    DeepRace(
        "R2",
        "PTB characters, 3-layer LSTM, for the lowest perplexity",
        "ptb-chars",
        _LOW_PERPLEXITY,
        tuning_epochs=4,
        epochs=50,
        claims=_R2,
        keys=_IN_PERPLEXITY,
        changes=(("batch", 256),),
        model="lstm-512-bf16-256",
    ),
    # Batches between R1 and R2: Adam is ahead in the first epoch of R1, and level with GGT in the middle of R2.
    DeepRace(
        "R3",
        "PTB characters, 3-layer LSTM, in seconds",
        "ptb-chars",
        _LOW_PERPLEXITY,
        tuning_epochs=6,
        epochs=50,
        claims=[_r3("lstm-512-bf16-512", "with batches of 512")],
        keys=_IN_PERPLEXITY,
        changes=(("batch", 512),),
        model="lstm-512-bf16-512",
        early_looks=6,  # perplexity falls from 50 to 5 in the first epoch: a straight line would say little
    ),
    DeepRace(
        "C1",
        "CIFAR-10, Shake-Shake 26 2×32d",
        "cifar10",
        _IMAGES,
        tuning_epochs=3,
        epochs=30,
        claims=_C1,
        keys=_IN_IMAGES,
        variants={
            "SGD fixed": Variant("SGD", schedule="constant"),
            "GGT fixed": Variant("GGT", schedule="constant"),
            "SGD low": Variant("SGD", factor=0.1),
            "GGT low": Variant("GGT", factor=0.1),
        },
        model="shake-shake-bf16",
    ),
    DeepRace(
        "A1",
        "CIFAR-10, VGG-19 without batch norm",
        "cifar10-vgg",
        _VGG,
        tuning_epochs=3,
        epochs=30,
        schedule="halving",
        claims=_A1,
        keys=_IN_IMAGES,
    ),
    DeepRace(
        "A2",
        "PTB characters, Transformer",
        "ptb-chars-transformer",
        _TRANSFORMER,
        tuning_epochs=2,
        epochs=20,
        claims=_A2,
        keys=_IN_PERPLEXITY,
    ),
    # For two epochs Adam predicts only the frequencies of words, at every rate: shorter runs would tune nothing.
    DeepRace("R4", "PTB words, LSTM", "ptb-words", _WORDS, tuning_epochs=8, epochs=40, claims=_R4, keys=_IN_PERPLEXITY),
    # About a thousand records each.
    SpectraOverTraining(
        {
            "CNN": _recorded("Shake-Shake 26 2×32d, CIFAR-10", "cifar10", _RECORDED_IMAGES, (3, 30), every=12),
            # The first epochs of a longer run, in which a cosine is still flat.
            "RNN": _recorded(
                "3-layer LSTM, PTB characters",
                "ptb-chars",
                _PERPLEXITY["GGT"][1],
                (4, 5),
                every=2,
                schedule="constant",
                tuning_schedule="cosine",
                changes=(("batch", 128),),
            ),
            "VGG": _recorded(
                "VGG-19 without batch norm, CIFAR-10",
                "cifar10-vgg",
                _RECORDED_IMAGES,
                (3, 30),
                every=12,
                schedule="halving",
            ),
            "Transformer": _recorded(
                "Transformer, PTB characters", "ptb-chars-transformer", _TRANSFORMER["GGT"][1], (2, 20), every=6
            ),
        }
    ),
)
