"""The built site: ``sphinx-build -W -n docs docs/_build``, then ``pytest tests/site``. Pages are read, not shown."""

import functools
import importlib
import inspect
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cases import PUBLIC_MODULES

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build"
SOURCES = [page for page in sorted(DOCS.rglob("*.md")) if not {"_build", "jupyter_execute"} & set(page.parts)]
NOTEBOOKS = [page for page in SOURCES if "{code-cell}" in page.read_text(encoding="utf-8")]  # the lessons, and others
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "audio": "src", "video": "src"}
LOADED |= {"link": "href", "object": "data", "use": "href", "image": "href"}
LEADS = {"index", "search", "next", "prev"}  # a <link> to another page, which no browser fetches by itself


@pytest.fixture(autouse=True, scope="module")
def _the_site_is_built():
    if not (SITE / "index.html").is_file():
        pytest.exit("build the site first: sphinx-build -W -n docs docs/_build", returncode=1)


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.anchors = set()
        self.links = []  # of <a>
        self.loads = []  # what a browser fetches by itself
        self.unnamed = []  # pictures without a text that says what they show
        self.outputs = []  # the text of each output of a cell
        self._open = []  # (tag, whether an output of a cell begins there)
        self._svg = None  # the outermost <svg>, and whether it has a name
        self._css = []
        self.feed(file.read_text(encoding="utf-8"))
        self.loads += fetched_by_css("".join(self._css))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in LEADS:
            self.links.append(values["href"])
        elif values.get(LOADED.get(tag)):
            self.loads.append(values[LOADED[tag]])
        self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        self._css.append(values.get("style") or "")
        if tag == "img" and not (values.get("alt") or "").strip():
            self.unnamed.append(self.get_starttag_text())
        in_article = any(opened == "article" for opened, _ in self._open)
        if tag == "svg" and self._svg is None and in_article and values.get("aria-hidden") != "true":
            self._svg = [self.get_starttag_text(), bool((values.get("aria-label") or "").strip()), len(self._open)]
        if tag == "title" and self._svg is not None:
            self._svg[1] = True
        begins = "cell_output" in (values.get("class") or "").split()
        if begins:
            self.outputs.append("")
        if "traceback" in (values.get("class") or "").split() and self.outputs:
            self.outputs[-1] += "Traceback (most recent call last)"
        if tag not in VOID:
            self._open.append((tag, begins))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in [opened for opened, _ in self._open]:
            return
        while self._open.pop()[0] != tag:
            pass
        if self._svg is not None and len(self._open) <= self._svg[2]:
            text, is_named, _ = self._svg
            self._svg = None
            if not is_named:
                self.unnamed.append(text)

    def handle_data(self, data):
        if self._open and self._open[-1][0] == "style":
            self._css.append(data)
        if any(is_output for _, is_output in self._open):
            self.outputs[-1] += data


def fetched_by_css(text):
    """What style sheets load: ``url(...)`` and ``@import "..."``."""
    return [found[1] for found in re.findall(r"""(?:url\(\s*|@import\s+)(["']?)(.*?)\1\s*(?:\)|;)""", text) if found[1]]


@functools.cache
def pages():
    return [Page(file) for file in sorted(SITE.rglob("*.html")) if "_static" not in file.relative_to(SITE).parts]


@functools.cache
def by_file():
    return {page.file: page for page in pages()}


def where(page):
    return page.file.relative_to(SITE).as_posix()


# ----------------------------------------------------------------------------------------------------------- the reference


@functools.cache
def inventory():
    """The Python names that the site describes, each with its page."""
    content = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = [line.split(" ", 4) for line in zlib.decompress(content).decode().splitlines()]
    return {name: uri.replace("$", name) for name, kind, _, uri, _ in lines if kind.startswith("py:")}


def public_names():
    """Every name that users may import, as they write it."""
    tinytensor = importlib.import_module("tinytensor")
    for module in map(importlib.import_module, PUBLIC_MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            is_elsewhere = module is not tinytensor and getattr(tinytensor, name, None) is value  # tt.seed, and tt.relu
            if not (is_elsewhere or inspect.ismodule(value)):
                yield f"{module.__name__}.{name}"
    methods = vars(tinytensor.Tensor).items()
    yield from (f"tinytensor.Tensor.{n}" for n, value in methods if n[0] != "_" and (callable(value) or value.__doc__))


def test_every_public_name_is_described():
    names = set(public_names())
    assert len(names) > 450
    assert sorted(names - set(inventory())) == []


def test_every_description_is_in_the_reference():
    homes = {uri.partition("#")[0] for uri in inventory().values()}
    assert [home for home in homes if not home.startswith("reference/")] == []


# --------------------------------------------------------------------------------------------------------------- all pages


def test_every_picture_has_a_text_that_says_what_it_shows():
    assert [(where(page), text) for page in pages() for text in page.unnamed] == []


def test_no_page_loads_anything_from_elsewhere():
    loads = [(where(page), target) for page in pages() for target in page.loads]
    for file in SITE.rglob("*.css"):
        loads += [(file.name, target) for target in fetched_by_css(file.read_text(encoding="utf-8"))]
    assert len(loads) > 10
    assert [load for load in loads if re.match(r"\s*(\w+:)?//", load[1])] == []


def test_every_link_and_anchor_leads_somewhere():
    broken = [(where(page), link) for page in pages() for link in {*page.links, *page.loads} if not resolves(page, link)]
    assert sorted(broken) == []


def resolves(page, link):
    """Return True if a link within the site, or a file that the page loads, exists."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in by_file() or anchor in by_file()[target].anchors | icons(by_file()[target])


def icons(page):
    """The icons that a page of source code gets from a script."""
    if not any(load.endswith("_static/icons.js") for load in page.loads):
        return set()
    script = (SITE / "_static" / "icons.js").read_text(encoding="utf-8")
    return set(re.findall(r'id=\\"([\w-]+)\\"', script))


def test_no_page_has_a_path_of_this_machine():
    paths = [f"{path}/" for path in {str(DOCS.parent), str(Path.home())} if len(path) > 1]
    files = [file for kind in ("html", "js", "md", "rst", "txt") for file in SITE.rglob(f"*.{kind}")]
    assert files
    found = [(file.relative_to(SITE).as_posix(), path) for file in files for path in paths if path in file.read_text("utf-8")]
    assert found == []


def test_search_finds_why_a_layer_is_not_here():
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    recipes = index["docnames"].index("guides/recipes")
    assert {word: index["titleterms"].get(word) for word in ("conv2d", "maxpool2d", "batchnorm")} == dict.fromkeys(
        ("conv2d", "maxpool2d", "batchnorm"), recipes
    )


def test_the_site_is_small():
    files = [file for file in SITE.rglob("*") if file.is_file() and not {".doctrees", ".jupyter_cache"} & set(file.parts)]
    assert len(files) > 100
    assert not [file for file in files if file.suffix == ".map" or b"sourceMappingURL" in file.read_bytes()]
    assert sum(file.stat().st_size for file in files) < 15_000_000


def test_the_first_page_is_small():
    page = by_file()[SITE / "index.html"]
    loaded = {(SITE / unquote(urlsplit(target).path)).resolve() for target in page.loads} | {page.file}
    assert len(loaded) > 10
    assert sum(file.stat().st_size for file in loaded) < 1_500_000


def test_code_spans_lead_to_the_reference_and_to_the_source():
    span = r'<a class="reference internal" href="([^"]+)"[^>]*><code class="docutils literal notranslate">'
    found = {
        (where(page), *one) for page in pages() for one in re.findall(span + "([^<]*)", page.file.read_text(encoding="utf-8"))
    }
    assert len(found) > 400
    assert ("lessons/01_engine.html", "../reference/gradients.html#tinytensor.grad", "tt.grad(output, inputs)") in found
    assert ("lessons/01_engine.html", "../_modules/tinytensor/autograd/engine.html", "tinytensor/autograd/engine.py") in found
    assert not [one for one in found if one[2] == "backward"]  # the lesson's own


def test_the_search_has_the_text_of_each_page_without_a_server():
    text = (SITE / "_static" / "texts.js").read_text(encoding="utf-8")
    texts = json.loads(text.removeprefix("window.siteTexts = ").rstrip(";\n"))
    assert texts.keys() == {
        page.relative_to(DOCS).with_suffix("").as_posix() for page in [*SOURCES, *DOCS.glob("reference/*.rst")]
    }
    assert "no straight line separates" in texts["lessons/01_engine"]["train-a-neural-network"].lower()


# ----------------------------------------------------------------------------------------------------------------- lessons


def test_no_output_holds_an_error_or_a_warning():
    outputs = [(where(page), text) for page in pages() for text in page.outputs]
    assert outputs
    assert [output for output in outputs if re.search(r"Traceback \(most recent|Warning", output[1])] == []


def test_every_lesson_is_a_notebook():
    assert {page.stem[:2] for page in NOTEBOOKS if page.parent.name == "lessons"} == {f"{n:02}" for n in range(1, 15)}


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_every_cell_of_a_notebook_was_run(page):
    cells = len(re.findall(r"^```+ *\{code-cell\}", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
    executed = (DOCS / "jupyter_execute" / page.relative_to(DOCS)).with_suffix(".ipynb")  # what myst-nb writes
    assert executed.is_file(), "the site was built without this page's cells"
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert counts == list(range(1, cells + 1))


LESSONS = [page for page in NOTEBOOKS if page.parent.name == "lessons"]


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_a_lesson_can_be_taken_along(page):
    """Its notebook has the code of the page, and in its text nothing that only the site understands."""
    made = by_file()[(SITE / "lessons" / page.stem).with_suffix(".html")]
    assert f"../notebooks/{page.stem}.ipynb" in made.links
    assert f"jupyter lab {page.stem}.ipynb" in made.file.read_text(encoding="utf-8")
    notebook = json.loads((SITE / "notebooks" / f"{page.stem}.ipynb").read_text(encoding="utf-8"))
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = re.findall(r"^```+ *\{code-cell\}", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    reads_results = any("../../benchmarks" in source for source in code)
    assert len(code) == len(cells) + reads_results
    assert code[0].startswith("# This lesson reads results") == reads_results
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert re.search(r"^:::|^```\{|\]\([^)]*\.md", text, flags=re.MULTILINE) is None
    assert "data-touch" not in text
    assert re.search(r"[Oo]n the site[^`.]*:\s*$", text, flags=re.MULTILINE) is None  # it would lead to nothing
