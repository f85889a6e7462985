"""The paper's claims about speed, judged by the records of ``ggt bench``: O1 and O2."""

import re
from collections.abc import Mapping, Sequence

from ggt_lab.bench.cases import measuring_command
from ggt_lab.experiments.verdicts import Verdict
from ggt_lab.runs.results import Record

__all__ = ["speed_verdicts"]

_WINDOW = "GGT r=200 bfloat16"
_MODELS = {
    "shake-shake": ("CNN", 1.3),
    "lstm": ("RNN", 2.0),
    "shake-shake-bf16": ("CNN in bfloat16", 1.3),
    "lstm-512-bf16": ("RNN with autocast", 2.0),
    "lstm-512-bf16-256": ("RNN with autocast, batches of 256", 2.0),
    "lstm-512-bf16-512": ("RNN with autocast, batches of 512", 2.0),
}
_FASTER = 10.0


def speed_verdicts(records: Sequence[Record]) -> list[Verdict]:
    """The verdicts on O1 and O2, as far as these records decide them.

    Args:
        records: what `ggt_lab.bench.case_files.read_cases` returned.
    """
    done = [record for record in records if record.get("status") == "done"]
    training = [record["result"] for record in done if record["kind"] == "training"]
    return [*_overheads(training), *_eigh_against_svd([r["result"] for r in done if r["kind"] == "paper"])]


def _overheads(results: Sequence[Record]) -> list[Verdict]:
    found = []
    for result in results:
        if result["mode"] != "eager" or result["model"] not in _MODELS or _WINDOW not in result["over_SGD"]:
            continue
        name, papers = _MODELS[result["model"]]
        ratios = {key: value for key, value in result["over_SGD"].items() if key.startswith("GGT")}
        ggt, sgd = (result["times"][key] for key in (_WINDOW, "SGD"))
        others = "; ".join(f"{_in_words(key)} {value:.3f}" for key, value in ratios.items() if key != _WINDOW)
        longer = f"takes at most {papers:g} times as long as with SGD"
        found.append(
            Verdict(
                claim="O1",
                statement=f"{name}: a training step with GGT (200 rows) {longer}",
                paper=f"{papers:g} times",
                ours=f"{ratios[_WINDOW]:.3f} times (median over rounds of the ratio within a round). The medians of "
                f"all rounds are {ggt['median_ms']:.2f} ms with GGT and {sgd['median_ms']:.2f} ms with SGD, "
                f"{ggt['median_ms'] / sgd['median_ms']:.3f} times. Other windows: {others}",
                spread=_spread(result, ggt),
                n=int(ggt["calls"]),
                holds=ratios[_WINDOW] <= papers,
                command=measuring_command("training"),
            )
        )
    return found


def _spread(result: Record, ggt: Mapping[str, float]) -> str:
    """Where 80 % of the rounds lie: of the ratios, if the record has them; otherwise of the times."""
    if _WINDOW in result.get("over_SGD_range", {}):
        low, high = result["over_SGD_range"][_WINDOW]
        return f"80 % of the ratios lie between {low:.2f} and {high:.2f}"
    return f"80 % of the rounds took {ggt['low_ms']:.2f} to {ggt['high_ms']:.2f} ms"


def _in_words(key: str) -> str:
    """The window of a measured GGT.

    Example:
        >>> _in_words("GGT r=20 float32, no graph"), _in_words("GGT by parameter")
        ('20 rows in float32, no graph', 'a matrix for each parameter')
    """
    words = re.sub(r"^r=(\d+) ", r"\1 rows in ", key.removeprefix("GGT "))
    return "a matrix for each parameter" if words == "by parameter" else words


def _eigh_against_svd(results: Sequence[Record]) -> list[Verdict]:
    by_size: dict[tuple[int, int], dict[str, float]] = {}
    for result in results:
        ms = {key: float(time["median_ms"]) for key, time in result["times"].items() if not key.startswith("GGT")}
        by_size.setdefault((result["d"], result["r"]), {}).update(ms)
    found = []
    for (d, r), times in sorted(by_size.items(), reverse=True):
        eigh = {key: ms for key, ms in times.items() if "eigh" in key}
        svd = {key: ms for key, ms in times.items() if "SVD" in key}
        if not eigh or not svd:
            continue
        slower = min(svd.values()) / max(eigh.values())
        shown = ", ".join(f"{key} {ms:.3g} ms" for key, ms in {**eigh, **svd}.items())
        found.append(
            Verdict(
                claim="O2",
                statement=f"d = {d:,}, r = {r}: a step with eigh of GᵀG is more than {_FASTER:g} times as fast as "
                "a step with the SVD of G",
                paper="more than 10 times on a GPU",
                ours=f"{slower:.1f} times: {shown}",
                spread=None,
                n=1,
                holds=slower > _FASTER,
                command=measuring_command("paper"),
            )
        )
    return found
