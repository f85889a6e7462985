"""The heat-map of a spectrum: it shows what was recorded, and it can draw odd spectra."""

import json

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from ggt_lab.figures import spectrum_density as figures
from ggt_lab.figures.spectrum_density import densities, draw_spectrum
from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.spectrum import SpectrumRecorder


def spectrum(singular_values, steps=None, **more):
    steps = list(range(1, len(singular_values) + 1)) if steps is None else steps
    return {
        "label": "some run",
        "window": 4,
        "history": "gradient",
        "steps": steps,
        "singular_values": singular_values,
        **more,
    }


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they were when closed."""
    found = []
    monkeypatch.setattr(plt, "close", found.append)
    yield found
    monkeypatch.undo()
    plt.close("all")


@pytest.fixture
def unsaved(monkeypatch, drawn):
    """As `drawn`, without the time that rendering takes."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    return drawn


def panel(figure, index=0):
    return figure.axes[index]


def assert_written(files, path):
    assert files == [path.with_suffix(".png"), path.with_suffix(".pdf")]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert files[1].read_bytes().startswith(b"%PDF")


def test_a_recorded_run(tmp_path, drawn):
    parameter = torch.nn.Parameter(torch.zeros(30))
    optimizer = GGT([parameter], window=5)
    with SpectrumRecorder(optimizer) as recorder:
        for _ in range(40):
            parameter.grad = torch.randn(30)
            optimizer.step()
    found = json.loads(json.dumps(recorder.to_json()))
    path = tmp_path / "deep" / "spectrum"
    assert_written(draw_spectrum([found, found, found], path, title="Three"), path)
    axes = panel(drawn[0])
    assert axes.get_title(loc="left") == "PaperGGT"
    assert "5 momentum vectors" in axes.get_ylabel()
    assert axes.texts[0].get_text().startswith("condition ")
    assert axes.get_yscale() == "log"
    assert sum(other.get_visible() for other in drawn[0].axes) == 4  # three panels and the bar


def test_the_lines_are_median_filtered_extremes(tmp_path, unsaved):
    rng = np.random.default_rng(0)
    values = np.sort(np.exp(rng.normal(size=(200, 4))), axis=1)[:, ::-1]
    draw_spectrum([spectrum(values.tolist(), steps=list(range(10, 2010, 10)))], tmp_path / "s")
    low, high = panel(unsaved[0]).lines
    for line, column in ((low, 3), (high, 0)):
        x, y = line.get_data()
        np.testing.assert_array_equal(x[1:-1], np.arange(10, 2010, 10))
        at_100 = np.median(np.log10(values[98:103, column] ** 2))  # two to either side: a fortieth of 200 steps
        assert np.log10(y[101]) == pytest.approx(at_100)
        assert y[0] == y[1]


def test_the_map_is_darkest_where_the_eigenvalues_are(tmp_path, unsaved):
    many = [[10.0, 1.0, 1.0, 1.0]] * 30
    draw_spectrum([spectrum(many)], tmp_path / "s")
    (mesh,) = panel(unsaved[0]).collections
    shade, coordinates = mesh.get_array(), mesh.get_coordinates()
    centres = np.sqrt(coordinates[:-1, 0, 1] * coordinates[1:, 0, 1])
    assert shade.shape == (len(centres), 30)
    assert centres[np.argmax(shade[:, 7])] == pytest.approx(1.0, rel=0.1)
    assert shade[np.argmin(abs(centres - 100)), 7] == pytest.approx(np.sqrt(1 / 3), rel=0.05)
    assert shade[np.argmin(abs(centres - 10)), 7] < 0.01
    assert coordinates[0, :, 0].tolist() == [0.5 + k for k in range(31)]


def test_densities_against_scipy():
    values = np.array([0.0, 0.3, 0.5, 4.0])
    edges, (density,) = densities([values], rows=100)
    centres = (edges[1:] + edges[:-1]) / 2
    kde = gaussian_kde(values, bw_method=0.1 / values.std(ddof=1))  # a fortieth of the range
    np.testing.assert_allclose(density, kde(centres), atol=1e-9)
    assert density.sum() * (edges[1] - edges[0]) == pytest.approx(1.0, abs=1e-3)


def test_long_runs_are_pooled(tmp_path, unsaved, monkeypatch):
    monkeypatch.setattr(figures, "_COLUMNS", 10)
    draw_spectrum([spectrum([[2.0, 1.0]] * 95)], tmp_path / "s")
    (mesh,) = panel(unsaved[0]).collections
    assert mesh.get_array().shape[1] == 10
    assert mesh.get_coordinates()[0, [0, -1], 0].tolist() == [0.5, 95.5]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([[3.0, 1.0, 0.0]], id="a single record"),
        pytest.param([[1.0], [2.0, 1.0], [2.0, 1.0, 0.5]], id="a window that fills"),
        pytest.param([[1.0], [1.0]], id="a window of one"),
        pytest.param([[1.0, 0.0], [0.0, 0.0], [1e-9, 1e-12]], id="zeros between"),
        pytest.param([[1e20, 1e14], [1e-20, 1e-26]], id="ninety decades"),
    ],
)
def test_odd_spectra(tmp_path, values, drawn):
    assert_written(draw_spectrum([spectrum(values)], tmp_path / "odd"), tmp_path / "odd")
    for line in panel(drawn[0]).lines:
        assert np.isfinite(line.get_ydata()).all()
        assert (line.get_ydata() > 0).all()


@pytest.mark.parametrize(
    ("values", "words"), [([], "nothing was recorded"), ([[0.0, 0.0]], "every eigenvalue is zero")]
)
def test_nothing_to_show_is_said(tmp_path, values, words, drawn):
    assert_written(draw_spectrum([spectrum(values)], tmp_path / "none"), tmp_path / "none")
    assert panel(drawn[0]).texts[0].get_text() == words


def test_zeros_are_counted_in_words(tmp_path, unsaved):
    rounding = {"diagnosis": {"summary": "", "numbers": {"condition": 1234567.0, "rounding": 1e-4}}}
    draw_spectrum([spectrum([[1.0, 0.5], [1.0, 0.5, 1e-3, 0.0]], **rounding)], tmp_path / "s")
    text = panel(unsaved[0]).texts[0].get_text()
    assert text == "condition 1.2·10$^{6}$ (median of the last quarter); up to 2 zeros not shown"
    low, _ = panel(unsaved[0]).lines
    assert low.get_ydata() == pytest.approx(0.25)


def test_no_spectra():
    with pytest.raises(ValueError, match="at least one spectrum, got none"):
        draw_spectrum([], None)
