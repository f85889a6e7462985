"""The entrants of the league: optimizers, and where the search for their settings begins.

A learning rate is 10^(k/2) for a whole number k, for everybody. A search begins at three neighbouring rates. Besides
the rate it may change five things, one after the other; for nearly everybody these are momentum and weight decay.

A window has 50 rows here, which is a concession to the CPU. The GGT that enters the paper's claims has the paper's 200.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["BASELINES", "ENTRANTS", "OURS", "RECOMMENDED", "RECOMMENDED_DEEP", "Entrant"]

_START = {"momentum": 0.9, "weight_decay": 0.0}
_CHANGES = ({"momentum": 0.95}, {"weight_decay": 0.1}, {"momentum": 0.8}, {"weight_decay": 0.01}, {"momentum": 0.98})


# A weight decay that is not decoupled goes through the momentum or through Adam's scale: a smaller one has an equal
# effect. It is also smaller where a rate is about a thousand times the rate of AdamW.
_COUPLED = ({"momentum": 0.95}, {"weight_decay": 1e-3}, {"momentum": 0.8}, {"weight_decay": 1e-4}, {"momentum": 0.98})
_LONG_STEPS = (
    *({"momentum": 0.95}, {"weight_decay": 1e-4}, {"momentum": 0.8}),
    *({"weight_decay": 1e-5}, {"momentum": 0.98}),
)


@dataclass(frozen=True)
class Entrant:
    """An optimizer with its search."""

    name: str
    title: str
    spec: str
    """What `ggt_lab.optimizers.specs` reads; words in braces are settings."""
    power: int = -4
    """The search begins with the rates 10^((power - 1)/2), 10^(power/2) and 10^((power + 1)/2)."""
    start: Mapping[str, float] = field(default_factory=lambda: _START)
    """The settings with which the search begins."""
    changes: tuple[Mapping[str, float], ...] = _CHANGES
    """What the search may change besides the rate, in this order."""
    kind: str = "first order"
    """ "first order"; "L-BFGS"; or "then L-BFGS", "then self-scaled": first order for a share of the gradients, and a
    quasi-Newton method for the rest."""
    then: str = ""
    """The spec of this quasi-Newton method; empty for torch's L-BFGS."""
    deep: bool = False
    """It enters the deep tasks, too."""
    paper: bool = False
    """It enters for the paper's claims alone: the tasks that name it."""

    def rules(self) -> dict[str, Any]:
        """All that decides a run: the fields that are set, without the title and without which tasks it enters."""
        others = ("title", "deep", "paper")
        return {key: value for key, value in asdict(self).items() if key not in others and value != ""}

    def spec_with(self, settings: Mapping[str, float]) -> str:
        """The spec with these settings."""
        return self.spec.format(**settings)


_ADAMW = "AdamW(betas=({momentum}, 0.999), weight_decay={weight_decay})"
_MUON = "MuonAndAdamW(momentum={momentum}, weight_decay={weight_decay})"
_NORMUON = "NorMuonAndAdamW(momentum={momentum}, weight_decay={weight_decay})"
_SOAP = "pytorch_optimizer.SOAP(betas=({momentum}, 0.95), weight_decay={weight_decay})"
_GGT_200 = (
    "PaperGGT(window=200, window_dtype='bfloat16', adjust_lr_fn='original', betas=({momentum}, 0.999), "
    "weight_decay={weight_decay})"
)
_GGT = "betas=({{momentum}}, {beta2}), weight_decay={{weight_decay}}"

ENTRANTS = (
    Entrant("sgd", "SGD", "SGD(momentum={momentum}, weight_decay={weight_decay})", power=-2, changes=_COUPLED),
    Entrant("adamw", "AdamW", _ADAMW, deep=True),
    Entrant("muon", "Muon", _MUON, deep=True),
    Entrant("normuon", "NorMuon", _NORMUON, deep=True),
    Entrant("soap", "SOAP", _SOAP, deep=True),
    # With new roots at every step, the default. With roots of every tenth step it diverged at all rates: the first
    # roots have huge eigenvalues where the first gradients had no part.
    Entrant(
        "shampoo",
        "Shampoo",
        "pytorch_optimizer.Shampoo(momentum={momentum}, weight_decay={weight_decay}, weight_decouple=True)",
        power=0,
    ),
    Entrant(
        "lbfgs",
        "L-BFGS",
        "LBFGS(history_size={history:.0f}, line_search_fn='strong_wolfe')",
        power=0,
        start={"history": 50},
        changes=({"history": 100}, {"history": 20}, {"history": 10}, {"history": 200}, {"history": 5}),
        kind="L-BFGS",
    ),
    Entrant(
        "adam-lbfgs",
        "Adam, then L-BFGS",
        "Adam(betas=({momentum}, 0.999))",
        start={"momentum": 0.9, "share": 0.5},
        changes=({"share": 0.25}, {"share": 0.75}, {"momentum": 0.8}, {"share": 0.9}, {"momentum": 0.95}),
        kind="then L-BFGS",
    ),
    *(
        Entrant(
            name,
            f"Adam, then {title}",
            "Adam(betas=({momentum}, 0.999))",
            start={"momentum": 0.9, "share": 0.25},
            changes=({"share": 0.1}, {"share": 0.5}, {"share": 0.0}, {"momentum": 0.8}, {"share": 0.75}),
            kind="then self-scaled",
            then=f"scimba_torch.optimizers.ssbroyden.SSBroyden(method={name!r})",
        )
        for name, title in (("ssbroyden", "SSBroyden"), ("ssbfgs", "SSBFGS"))
    ),
    Entrant("ggt-paper", "GGT (paper)", f"PaperGGT(window=50, {_GGT.format(beta2=0.999)})", deep=True),
    Entrant("ggt-parameter", "GGT by parameter", f"PaperGGT(window=50, scope='parameter', {_GGT.format(beta2=1.0)})"),
    Entrant(
        "ggt-momentum-polar", "GGT momentum, polar", f"PaperGGT(window=50, finish='polar', {_GGT.format(beta2=1.0)})"
    ),
    Entrant(
        "ggt-momentum-rows",
        "GGT momentum, polar rows",
        f"PaperGGT(window=50, finish='polar_rows', {_GGT.format(beta2=1.0)})",
        deep=True,
    ),
    Entrant("ggt", "GGT (default)", f"GGT(window=50, {_GGT.format(beta2=1.0)})", deep=True),
    Entrant("ggt-polar", "GGT polar rows", f"GGT(window=50, finish='polar_rows', {_GGT.format(beta2=1.0)})", deep=True),
    Entrant("whiten-adamw", "whiten(AdamW)", f"whiten({_ADAMW}, window=50)"),
    Entrant("whiten-muon", "whiten(Muon)", f"whiten({_MUON}, window=50)", deep=True),
    Entrant("whiten-normuon", "whiten(NorMuon)", f"whiten({_NORMUON}, window=50)"),
    Entrant("whiten-soap", "whiten(SOAP)", f"whiten({_SOAP}, window=50)", deep=True),
    Entrant("ggt-200", "GGT (paper, 200 rows)", _GGT_200, power=0, changes=_LONG_STEPS, paper=True),
    Entrant(
        "adam", "Adam", "Adam(betas=({momentum}, 0.999), weight_decay={weight_decay})", changes=_COUPLED, paper=True
    ),
    Entrant(
        "adagrad",
        "AdaGrad",
        "Adagrad(initial_accumulator_value={initial}, weight_decay={weight_decay})",
        power=-3,
        start={"initial": 0.0, "weight_decay": 0.0},
        changes=(
            *({"initial": 0.1}, {"weight_decay": 1e-3}, {"initial": 0.01}),
            *({"weight_decay": 1e-4}, {"initial": 1.0}),
        ),
        paper=True,
    ),
)
BASELINES = ("adamw", "muon", "normuon", "soap")
"""The rivals that our recommended members are measured against."""
RECOMMENDED = "whiten-soap"
"""Our recommended member; it was named before the first run of this season, by runs with other seeds."""
RECOMMENDED_DEEP = "ggt-momentum-rows"
"""Our member for deep tasks; prototypes named it, and a first GPT without a warm-up, before the runs with one."""
OURS = tuple(entrant.name for entrant in ENTRANTS if entrant.name.startswith(("ggt", "whiten")))
