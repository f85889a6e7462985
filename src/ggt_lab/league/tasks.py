"""The tasks of the league: what is trained, for how long, by which number it is tuned, and which number is reported.

Steps and budgets were fixed before the first run of a task. A task that changes is another task: a folder with results
of the task before is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["DEEP", "PAPER", "SMALL", "TASKS", "LeagueTask"]


@dataclass(frozen=True)
class LeagueTask:
    """A problem of the lab, with the numbers that the protocol fixes for it."""

    name: str
    title: str
    problem: str
    steps: int
    """The length of a reported run, in gradients of the loss."""
    tuning_steps: int
    """The length of a trial."""
    metric: str
    """The number that is reported; small is good."""
    tuned_by: str
    """The number that chooses among trials. It is of another split, or (PINNs) of the training points alone."""
    minutes: int
    """The budget of the task, all entrants together: minutes of one CPU core, or of one GPU for a deep task."""
    full_batch: bool = False
    """Every step sees all of the data, so that L-BFGS can enter."""
    deep: bool = False
    """It needs a GPU, and only the entrants for deep tasks enter."""
    reference: str = ""
    """What is known of the number that is reported."""
    data: str = ""
    """The data that it needs; empty if the problem makes its data."""
    seeds: int | None = None
    """How many of the protocol's fresh seeds are reported; None means all of them."""
    evaluations: int | None = None
    """How often a reported run is evaluated; None means as often as the protocol says."""
    warm_up: float | None = None
    """The share of the steps in which the learning rate rises to its full size; None means that it begins there."""
    schedule: str | None = None
    """One of `ggt_lab.runs.schedules.SCHEDULES`; None means a cosine."""
    powers: Mapping[str, int] = field(default_factory=dict)
    """Where the search of these entrants begins, as `Entrant.power`. They enter, and their cells are played first, in
    this order."""
    closed: bool = False
    """A claim of the paper with a task of its own: nobody else enters."""

    @property
    def kind(self) -> str:
        """Either "small", or "deep", or "paper": a claim of the paper, with a task of its own."""
        return "paper" if self.closed else "deep" if self.deep else "small"

    def rules(self) -> dict[str, Any]:
        """All that decides a run: the fields that are set, without words for readers and without who enters."""
        others = ("title", "reference", "data", "powers", "closed")
        return {key: value for key, value in asdict(self).items() if key not in others and value is not None}


_PINN: dict[str, Any] = {"tuned_by": "loss", "full_batch": True}
_SPLIT: dict[str, Any] = {"metric": "test_loss", "tuned_by": "validation_loss"}
_DEEP: dict[str, Any] = {**_SPLIT, "deep": True, "seeds": 3, "evaluations": 10, "warm_up": 0.05}

SMALL = (
    LeagueTask(
        name="factorization",
        title="matrix factorization, condition 1e4: relative squared error",
        problem="factorization",
        steps=500,
        tuning_steps=500,
        metric="loss",
        tuned_by="loss",
        full_batch=True,
        minutes=5,
        reference="the infimum is 0; float32 ends near 1e-13",
    ),
    LeagueTask(
        name="poisson",
        title="PINN, Poisson with two scales: relative error",
        problem="pinn-poisson",
        steps=600,
        tuning_steps=600,
        metric="error",
        reference="the exact solution has error 0; a network that is zero has error 1",
        minutes=12,
        **_PINN,
    ),
    LeagueTask(
        name="digits",
        title="digits, small CNN: test loss",
        problem="digits-split",
        steps=400,
        tuning_steps=400,
        minutes=10,
        reference="a guess has loss 2.30",
        **_SPLIT,
    ),
    LeagueTask(
        name="burgers",
        title="PINN, Burgers: training loss",
        problem="pinn-burgers",
        steps=500,
        tuning_steps=500,
        metric="loss",
        reference="the exact solution has loss 0",
        minutes=18,
        **_PINN,
    ),
    LeagueTask(
        name="adding",
        title="adding problem, plain RNN, 30 steps: squared error",
        problem="adding",
        steps=500,
        tuning_steps=500,
        minutes=12,
        reference="the constant answer 1 has error 0.167",
        **_SPLIT,
    ),
    LeagueTask(
        name="curves",
        title="deep autoencoder, synthetic curves: squared error per image",
        problem="curves",
        steps=500,
        tuning_steps=500,
        minutes=25,
        reference="the mean image has an error of about 17",
        **_SPLIT,
    ),
    LeagueTask(
        name="allen-cahn",
        title="PINN, Allen–Cahn: training loss",
        problem="pinn-allen-cahn",
        steps=500,
        tuning_steps=500,
        metric="loss",
        reference="the exact solution has loss 0",
        minutes=18,
        **_PINN,
    ),
    LeagueTask(
        name="convection",
        title="PINN, convection with β = 30: relative error",
        problem="pinn-convection",
        steps=1000,
        tuning_steps=1000,
        metric="error",
        reference="the exact solution has error 0; a network that is zero has error 1",
        minutes=40,
        **_PINN,
    ),
)
"""Minutes each, on a CPU."""

DEEP = (
    LeagueTask(
        name="gpt-ptb",
        title="GPT of 10.8 M, PTB characters: test loss",
        problem="league-gpt-ptb",
        steps=1200,
        tuning_steps=500,
        minutes=40,
        data="the Penn Treebank (downloaded, or --data DIR)",
        reference="prototypes, one seed: AdamW 1.12 and NorMuon 1.06 on the validation text",
        powers={"ggt-200": -1, "adam": -6},  # claim A2
        **_DEEP,
    ),
    LeagueTask(
        name="gpt-bytes",
        title="byte GPT of 25 M, Python sources: test loss",
        problem="league-gpt-bytes",
        steps=600,
        tuning_steps=250,
        minutes=40,
        data="python-sources.npz (python tools/python_sources.py DIR makes it, then --data DIR)",
        **_DEEP,
    ),
    LeagueTask(
        name="lstm-ptb",
        title="LSTM of 5.5 M, PTB characters: test loss",
        problem="league-lstm-ptb",
        steps=1500,
        tuning_steps=600,
        minutes=30,
        data="the Penn Treebank (downloaded, or --data DIR)",
        reference="prototypes, one seed: AdamW 1.056 and SOAP 1.020 on the validation text",
        powers={"ggt-200": 1, "adam": -5, "sgd": 0, "adagrad": -3},  # claims R2 and R3
        **_DEEP,
    ),
    LeagueTask(
        name="shake-shake",
        title="Shake-Shake 26 2×32d, CIFAR-10: test loss",
        problem="league-shake-shake",
        steps=3 * 351,
        tuning_steps=351,
        minutes=40,
        data="CIFAR-10 (downloaded, or --data DIR)",
        **_DEEP,
    ),
    LeagueTask(
        name="resnet",
        title="small ResNet, CIFAR-10: test loss",
        problem="league-resnet",
        steps=1200,
        tuning_steps=500,
        minutes=15,
        data="CIFAR-10 (downloaded, or --data DIR)",
        **_DEEP,
    ),
)
"""15 to 40 minutes each, on a GPU."""

_PAPER: dict[str, Any] = {**_SPLIT, "deep": True, "seeds": 3, "closed": True}
_PTB = "the Penn Treebank (downloaded, or --data DIR)"
_R4 = LeagueTask(
    name="r4",
    title="claim R4, LSTM of 24 M, PTB words: test loss",
    problem="league-r4",
    steps=4 * 663,
    tuning_steps=2 * 442,
    evaluations=4,  # one for each epoch: the claim is about epochs
    minutes=40,
    warm_up=0.05,
    powers={"ggt-200": 1, "adam": -6},
    data=_PTB,
    **_PAPER,
)

# A search begins where earlier runs were best, for everybody: those of the old records, and where there are none, those
# of the deep tasks above.
PAPER = (
    _R4,
    # Adam stands at the frequencies of the words for some hundred steps. The trials of r4 ended before it left them.
    replace(_R4, name="r4-full", title="claim R4 with trials of full length: test loss", tuning_steps=_R4.steps),
    # Two looks in each epoch: two decays never fall between two looks. The paper names the schedule, so no warm-up.
    LeagueTask(
        name="a1",
        title="claim A1, VGG-19 without batch norm, CIFAR-10: test loss",
        problem="league-a1",
        steps=8 * 351,
        tuning_steps=8 * 117,
        evaluations=16,
        minutes=40,
        schedule="halving",
        powers={
            **{"ggt-200": -2, "sgd": -3, "adam": -8, "adagrad": -7},
            **{"adamw": -8, "muon": -5, "normuon": -5, "soap": -6},
        },
        data="CIFAR-10 (downloaded, or --data DIR)",
        **_PAPER,
    ),
)
"""Claims of the paper whose old records have flaws, and which no task above can judge; `paper_claims` judges them."""

TASKS = (*SMALL, *DEEP, *PAPER)
