"""The documentation site: ``make docs`` builds it from the pages of this folder and from ``examples/``."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))

import torch_ggt  # noqa: E402 - the source of this folder, not an installed one

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

project = "torch-ggt"
author = "The torch-ggt developers"
copyright = author
version = release = torch_ggt.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "images", "**/GALLERY_HEADER.rst", "gallery/**/*.ipynb", "gallery/**/*.py"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
default_role = "py:obj"

# -- warnings are errors; what is left out is what cannot be resolved without a network
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # plain backticks in docstrings: a link where there is something to link to
    ("py:class", r"(torch|collections|typing|ParamsT|Tensor|Optimizer|Module|ProcessGroup|.*\bnn\b).*"),
]

# -- the reference
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what is what, in words
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# -- the gallery: every example is run, unless its package is missing
NEEDS = {
    "with_lightning": "lightning",
    "with_trainer": "transformers",
    "with_accelerate": "accelerate",
    "with_timm": "timm",
}
_absent = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is None]
_run = rf"/(?!(?:{'|'.join(_absent)})\.py)\w+\.py$" if _absent else r"\.py$"
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": _run,
    "ignore_pattern": r"/distributed/",
    "within_subsection_order": "ExampleTitleSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib",),
    "image_scrapers": ("matplotlib",),
    "log_level": {"backreference_missing": "debug"},
}

# -- the look
html_theme = "furo"
html_title = f"torch-ggt {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {
    "top_of_page_buttons": [],
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _links_out_of_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links to files that are no pages (records, source) lead to the repository; pictures stay."""

    def absolute(found: re.Match[str]) -> str:
        place, anchor = found["place"], found["anchor"] or ""
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{place}{anchor})"

    # An image keeps its path: Sphinx copies it.
    source[0] = re.sub(
        r"(?P<image>!\[[^\]]*\]\([^)]*\))|\]\(\.\./(?P<place>[^)#]+?)/?(?P<anchor>#[^)]*)?\)",
        lambda found: found[0] if found["image"] else absolute(found),
        source[0],
    )


def _every_page_has_a_place(app: Sphinx, docname: str, source: list[str]) -> None:
    """Pages that index.md does not name are added where it says so: a new page needs no change there."""
    if docname != "index":
        return
    named = set(re.findall(r"^(?:.*<)?([\w/-]+)>?$", source[0], re.MULTILINE))
    rest = sorted(path.stem for path in DOCS.glob("*.md") if path.stem not in {*named, "index"})
    source[0] = source[0].replace("(pages that no list above names)", "\n".join(rest))


def _math_renderer(block: bool) -> tuple[Callable[..., None], None]:
    """Formulas as MathML, which browsers draw themselves: no script, nothing to fetch."""

    def visit(translator: Any, node: nodes.Node) -> None:  # noqa: ANN401 - Sphinx' HTML translator
        formula = tex2mathml(node.astext(), as_block=block)
        translator.body.append(f'<div class="formula">{formula}</div>' if block else formula)
        raise nodes.SkipNode

    return visit, None


# What the theme and the gallery leave without a name, or with one name twice, for people who do not see the page.
_NAMES = (
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'),
    (r'<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
    (r"<div id='sg-tag-list' ", "<div "),
    (r'(?<!</h1>)<div id="search-results">', '<h1>Search</h1><div id="search-results">'),
    (
        r'<img alt="" (src="[^"]*_thumb\.png" />\n<p><a)'
        r' (class="reference internal" href="[^"]*"><span class="doc">)([^<]*)<',
        r'<img alt="Figure of: \3" \1 aria-label="\3" \2\3<',
    ),
)


def _name_everything(app: Sphinx, error: Exception | None) -> None:
    """Write the missing names into the finished pages."""
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for found, named in _NAMES:
            text = re.sub(found, named, text)
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """What the pages need beyond Sphinx' own."""
    app.connect("source-read", _links_out_of_the_site)
    app.connect("source-read", _every_page_has_a_place)
    app.connect("build-finished", _name_everything)
    app.add_html_math_renderer("mathml", inline_renderers=_math_renderer(False), block_renderers=_math_renderer(True))
