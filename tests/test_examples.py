"""Every script of examples/ runs, with few steps; each is short enough to be read at a glance.

The gallery of the site runs them as they are. The examples on several ranks are in tests/distributed.
"""

import importlib
import re
import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))
PAGES = [script for script in SCRIPTS if not script.startswith("distributed/")]
NEEDS = {
    "with_lightning": "lightning",
    "with_trainer": "transformers",
    "with_accelerate": "accelerate",
    "with_timm": "timm",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_short_enough(script):
    assert len((EXAMPLES / script).read_text().splitlines()) < 80


def fewer_steps(source):
    """The script with a handful of steps; the window of the recorder in spectra.py still fills."""
    quick = re.sub(r"^(STEPS|EPOCHS)( = |, \w+, \w+ = )\d+", r"\1\g<2>22", source, count=1, flags=re.MULTILINE)
    return re.sub(r"^EPOCHS = \d+", "EPOCHS = 1", quick, count=1, flags=re.MULTILINE)


@pytest.mark.parametrize("script", PAGES)
def test_runs(script, capsys):
    stem = Path(script).stem
    mpl.use("Agg")
    source = (EXAMPLES / script).read_text()
    quick = fewer_steps(source)
    assert quick != source or stem == "resume", "the script has no STEPS or EPOCHS to make smaller"
    with warnings.catch_warnings():
        if stem in NEEDS:
            warnings.simplefilter("ignore")  # warnings of those packages are not ours
            import_or_skip(NEEDS[stem])
        exec(compile(quick, script, "exec"), {"__name__": "__main__"})
    plt.close("all")
    assert "nan" not in capsys.readouterr().out


def import_or_skip(package):
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # timm needs torchvision, whose build must fit the build of torch
        pytest.skip(f"{package} cannot be imported: {error}")
