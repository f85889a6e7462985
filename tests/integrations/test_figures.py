"""What is logged of a window, what an integration says without its package, and optimizers made from strings."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import batches, loss_of, small_model

import torch_ggt
from torch_ggt import GGT, whiten
from torch_ggt.integrations import Whitened, consolidate, figures, window_owner, write
from torch_ggt.integrations.extras import need

SOURCE = Path(torch_ggt.__file__).parents[1]


def two_gradients(optimizer, parameter):
    """Rows (3, 0) and (0, 1): orthogonal, of lengths 3 and 1."""
    for gradient in ([3.0, 0.0], [0.0, 1.0]):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()


def test_figures_of_two_known_rows():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = GGT([parameter], betas=(0.0, 1.0), window=5, shrinkage="auto")
    assert figures(optimizer) == {"skipped": 0, "rows": 0}
    two_gradients(optimizer, parameter)
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    expected = {"largest_singular": 3, "smallest_singular": 1, "effective_rank": math.exp(entropy), "noise_share": 1}
    assert figures(optimizer) == pytest.approx({"skipped": 0, "rows": 2, **expected}, rel=1e-6)
    parameter.grad = torch.tensor([math.inf, 0.0])
    with pytest.warns(UserWarning, match="skip"):
        optimizer.step()
    assert figures(optimizer)["skipped"] == 1


def test_figures_of_a_whitened_optimizer_are_those_of_its_window():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = whiten(torch.optim.SGD([parameter], lr=1.0), shrinkage=0.5)
    two_gradients(optimizer, parameter)
    found = figures(optimizer)
    assert window_owner(optimizer) is optimizer.whitening
    assert (found["rows"], found["largest_singular"]) == pytest.approx((2, 3))
    assert "noise_share" not in found  # the shrinkage is a number


def test_figures_of_several_matrices():
    wide, narrow = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 1))
    optimizer = GGT([wide, narrow], betas=(0.0, 1.0), scope="parameter")
    for large, small in ((3.0, 0.5), (4.0, 0.5)):
        wide.grad, narrow.grad = torch.tensor([large, 0.0]), torch.tensor([small])
        optimizer.step()
    found = figures(optimizer)
    assert found["rows"] == 2
    assert found["largest_singular"] == pytest.approx(5)
    assert found["smallest_singular"] == pytest.approx(0, abs=1e-6)
    assert found["effective_rank"] == pytest.approx(1)


class Scalars:
    def __init__(self):
        self.noted = {}

    def add_scalar(self, name, value, step):
        self.noted[name, step] = value


def test_write():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = GGT([parameter])
    two_gradients(optimizer, parameter)
    writer, expected = Scalars(), figures(optimizer)
    assert write(writer, optimizer, 7, prefix="a/") == {f"a/{name}": value for name, value in expected.items()}
    assert writer.noted == {(f"a/{name}", 7): value for name, value in expected.items()}
    assert write(None, optimizer, 8).keys() == {f"ggt/{name}" for name in expected}
    with pytest.raises(TypeError, match="str has neither add_scalar"):
        write("runs", optimizer, 9)


def test_an_optimizer_without_a_window_is_refused():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    for use in (figures, consolidate, lambda o: write(None, o, 0)):
        with pytest.raises(TypeError, match=r"Adam has no window: use torch_ggt.GGT, or torch_ggt.whiten\(Adam\("):
            use(optimizer)


# ---- packages ------------------------------------------------------------------------------------------------------


WITHOUT_PACKAGES = """
import importlib, importlib.metadata, sys
import torch_ggt
print([name for name in sys.modules if name.startswith("torch_ggt.integrations")])

def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.version = version
for package in ("lightning", "transformers"):
    try:
        importlib.import_module(f"torch_ggt.integrations.{package}")
    except ImportError as error:
        print(error)
"""


def test_without_packages():
    """torch_ggt does not import its integrations, and a missing package says what to install."""
    command = [sys.executable, "-c", WITHOUT_PACKAGES]
    found = subprocess.run(command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [
        "[]",
        *(
            f'torch_ggt.integrations.{package} needs the package {package}: pip install "torch-ggt[{package}]"'
            for package in ("lightning", "transformers")
        ),
    ]


def test_an_old_version_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.9.1rc2")
    need("transformers", "4.9", "nothing")
    with pytest.raises(ImportError, match=r"4\.47 or newer \(the argument\), and 4\.9\.1rc2 is installed: pip install"):
        need("transformers", "4.47", "the argument")


# ---- from strings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SGD", "torch.optim.SGD", torch.optim.SGD], ids=str)
def test_whitened_is_whiten_of_the_optimizer(kind):
    results = []
    for make in (
        lambda params: Whitened(
            params, kind, lr=0.1, options={"momentum": 0.9}, whitening={"window": 4, "window_dtype": "float64"}
        ),
        lambda params: whiten(torch.optim.SGD(params, lr=0.1, momentum=0.9), window=4, window_dtype=torch.float64),
    ):
        model = small_model()
        optimizer = make(model.parameters())
        assert type(optimizer) is torch.optim.SGD
        for x, y in batches():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "adamw"}, ValueError, "torch.optim has no optimizer 'adamw'; did you mean 'AdamW'"),
        ({"kind": "torch.optim.AdmaW"}, ValueError, "torch.optim has no optimizer 'AdmaW'; did you mean .*'AdamW'"),
        ({"kind": "Zzz"}, ValueError, "no optimizer 'Zzz'; it has .*'SGD'"),
        ({"kind": "lr_scheduler"}, ValueError, "no optimizer 'lr_scheduler'"),
        ({"kind": "nowhere.AdamW"}, ValueError, "cannot import 'nowhere'"),
        ({"kind": 3}, TypeError, "kind must be an optimizer's class or its name, got kind=3"),
        ({"kind": torch.nn.Linear}, TypeError, "kind must be an optimizer's class or its name"),
        (
            {"kind": "SGD", "whitening": 20},
            TypeError,
            r"whitening must be a dict, such as \{window: 20\}, got whitening=20",
        ),
        ({"options": "lr"}, TypeError, r"options must be a dict, such as \{lr: 1e-3\}, got options='lr'"),
        ({"whitening": {"window_dtype": "bf16"}}, ValueError, "window_dtype must be one of"),
        ({"whitening": {"windw": 3}}, TypeError, "windw"),
        ({"kind": "torch_ggt.GGT"}, ValueError, "GGT has a full matrix of its own"),
    ],
    ids=str,
)
def test_wrong_strings(options, error, message):
    with pytest.raises(error, match=message):
        Whitened(small_model().parameters(), **options)
