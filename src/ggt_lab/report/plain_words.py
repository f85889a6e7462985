"""The words of dated records, in the words of today.

A record keeps the words with which it was written, and experiments now use plainer words. `in_plain_words` gives an old
verdict in the words that its experiment would write today, so that old and new verdicts on one statement meet in one
row of the page of claims. Words of today stay as they are. No figure changes.

Whoever changes the words of a verdict in `ggt_lab.experiments` adds a row to the table here. Example:

    >>> plain("test error at the end: SGD at least 0 below GGT")
    'SGD ends with a lower test error than GGT'
    >>> plain("0.0961 against 0.08647: -0.0096 below")
    '0.0961 against 0.08647: 0.0096 higher'
    >>> plain("ahead at 2 of 20 epochs")
    'ahead at epoch 2 (of 20)'
"""

import re
from dataclasses import replace

from ggt_lab.experiments.verdicts import Verdict

__all__ = ["in_plain_words", "plain"]

_NUMBER = r"(training loss|training perplexity|test error|validation perplexity)"

_TABLE: tuple[tuple[str, str], ...] = (
    # Long runs: the end. A gap was said as a signed number, and "at least 0 below" meant lower.
    (r"\btrain (loss|perplexity)\b", r"training \1"),
    (_NUMBER + r" at the end: (.+?) at least 0 below (.+)$", r"\2 ends with a lower \1 than \3"),
    (_NUMBER + r" at the end: (.+?) at least (\S+) below (.+)$", r"\2 ends with a \1 at least \3 lower than \4"),
    (_NUMBER + r" at the end: (.+?) at most (\S+) above (.+)$", r"\2 ends with a \1 at most \3 higher than \4"),
    (r": \+(\S+) below$", r": \1 lower"),
    (r": -(\S+) below$", r": \1 higher"),
    (r"\(\+(\S+ ± \S+)\)", r"(\1 higher)"),
    (r"\(-(\S+ ± \S+)\)", r"(\1 lower)"),
    (r"^± (\S+) over seeds( at the end)?$", r"standard deviation over seeds\2: \1"),
    (r"^(\S+) at epoch (\d+), (\S+) at the end$", r"the lowest is \1 (epoch \2), the last is \3"),
    (r"^a low one generalizes", "a low learning rate generalizes"),
    (r"^0\.09 at 500 epochs$", "0.09 lower after 500 epochs"),
    # Long runs: all epochs.
    (r" at every epoch from (\d+) on$", r" from epoch \1 on"),
    (
        r"a lower " + _NUMBER + r" than (.*), ((?:(?! and )[^,])+?)( from epoch \d+ on)?$",
        r"a lower \1 than \2 and \3\4",
    ),
    (r"^below (.+?): (\d+ of \d+ epochs)", r"lower than \1 at \2"),
    (r"; ([^;:]+): (\d+ of \d+ epochs)", r"; than \1 at \2"),
    (r"(\d+ of \d+ epochs), not at ([^;]+)", r"\1 (not at \2)"),
    (_NUMBER + r" of (.+), ([^,:]+): (within \S+ of each other) at", r"\2 and \3 are \4 in \1 at"),
    (r"^at most (\S+ \(epoch \d+\)), (\S+ at the end): ", r"they differ by at most \1, and by \2: "),
    (_NUMBER + r": (.+?) leads (.+?) at first", r"\2 leads \3 in \1 at first"),
    (r"^ahead at (\d+) of (\d+) epochs", r"ahead at epoch \1 (of \2)"),
    (r"^ahead at ([\d–, ]+) of (\d+) epochs", r"ahead at epochs \1 (of \2)"),
    (r", (\S+)'s " + _NUMBER + r" falls by the largest factor", r", the \2 falls by the largest factor with \1"),
    (r"^(\S+) first at (\d+ of \d+ decays)", r"\1 is first at \2"),
    # Long runs: seconds.
    (r"\bin batches of\b", "with batches of"),
    (r"\bin seconds (\S+) is first to reach every", r"in seconds, \1 is the first to reach every"),
    (
        r"\bin seconds (\S+) is not always the first to reach every",
        r"in seconds, \1 is not always the first to reach a",
    ),
    (r"that others reach at the end", "that a baseline reaches at the end"),
    (r"^(\S+) (\S+) ms a step; against ", r"\1 takes \2 ms a step. Against "),
    (r"\(inside of the first epoch: (\d+ of \d+)\)", r"(inside the first epoch: first to \1)"),
    (r"no levels, the mean", "no levels, because the mean"),
    # Spectra.
    (r"\(momentum alone, without structure: ", "(gradients without structure: "),
    (r"\(4th to 5th: within 2 times\)", "(from the 4th to the 5th epoch: within a factor of 2)"),
    (r"^over seeds (?!:)", "over seeds: "),
    # Landscapes. Optimizers had the names of their classes.
    (r"\bDiagonalAdaptive\b", "diagonal AdaGrad"),
    (r"\bFullMatrixAdaptive\b", "full-matrix AdaGrad"),
    (r"AdaGrad\(beta2=([\d.]+)\)", r"AdaGrad with β₂ = \1"),
    (r"\bdiagonal(?= \d|, forgetting)", "diagonal AdaGrad"),
    (r"\bfull(?= \d|, forgetting)", "full-matrix AdaGrad"),
    (r"AdaGrad, forgetting\b", "AdaGrad with forgetting"),
    (r"^(diagonal AdaGrad is slower than|forgetting helps) full-matrix \(", r"\1 full-matrix AdaGrad ("),
    (r"\(over its last tenth", "(over the last tenth of the run"),
    (r"\(at its last step", "(at the last step"),
    (
        r"; better in (\S+) of seeds \((\S+) when rates are tuned for each seed's instance by itself\)",
        r"; the first is lower in \1 of seeds (in \2 if learning rates are tuned for each seed by itself)",
    ),
    (
        r"^SGD, diagonal, full: ever fewer steps to ",
        "SGD needs more steps than diagonal AdaGrad, and diagonal AdaGrad more than full-matrix AdaGrad, to reach ",
    ),
    (r"^SGD (\d+) \(reached by", r"mean steps: SGD \1 (reached by"),
    (r"\(reached by (\d+ of \d+)\)", r"(reached in \1 seeds)"),
    (r"^all inside; ", "all inside: "),
    (r"^SGD slowest$", "SGD is the slowest"),
    (r"^full-matrix fastest$", "full-matrix AdaGrad is the fastest"),
    (r"^the same ranking of convergence rates$", "convergence rates rank in this order"),
    # Options of GGT.
    (r"; lower in (\d+ of \d+ seeds); ", r"; the first is lower in \1; "),
    (r"; a seed changes it by ", "; standard deviation over seeds "),
    (r"moves GGT's step towards SGD's$", "moves the step of GGT towards the step of SGD"),
    (r"^cosine with SGD's step ", "cosine of the two steps, by sgd_scale: "),
    # The adaptive ratio.
    (r"of the bound's T$", "of the T of the bound"),
    (
        r"^full-matrix AdaGrad: μ is bounded by a quantity independent of T$",
        "μ of full-matrix AdaGrad has a bound that does not depend on T",
    ),
    (r"^from a sparse start full", "from a sparse start, full"),
    (r"^(\S+) of SGD's \(", r"\1 times the μ of SGD ("),
    (r"^AdaGrad in the noise's basis", "AdaGrad in the basis of the noise"),
    (r"at worst (\S+) of the bound, at (d = \d+), (\d+) nonzeros", r"at worst μ is \1 of the bound (\2, nonzeros: \3)"),
    (r"^for a 1-sparse start μ falls with d as its bound does, as", "for a 1-sparse start, μ falls like its bound, as"),
)
"""What to look for, and what to say instead, in this order."""


def plain(words: str) -> str:
    """The words of a record, in the words of today."""
    for old, new in _TABLE:
        words = re.sub(old, new, words)
    return words


def in_plain_words(verdict: Verdict) -> Verdict:
    """The verdict in the words of today. The command stays: it made the record."""
    return replace(
        verdict,
        statement=plain(verdict.statement),
        paper=plain(verdict.paper),
        ours=plain(verdict.ours),
        spread=None if verdict.spread is None else plain(verdict.spread),
    )
