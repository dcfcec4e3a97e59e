"""The reference: entries made from docstrings, under the names that users write, such as ``tinytensor.exp``.

``.. reference:: MODULE`` with names below it writes a table of these names, each with its first sentence, and then an entry
for each. Without names it takes those of the option ``:of:``, a module: its ``__all__``.

Docstrings are plain text. Here they become reStructuredText: what would be markup is escaped, except for what stands between
double backticks, and a public name there becomes a link.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, get_origin

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.ext.viewcode import OUTPUT_DIRNAME, viewcode_anchor
from sphinx.util import inspect as sphinx_inspect
from sphinx.util.docutils import SphinxDirective

import tinytensor

# The modules whose names users write. A name that several have belongs to the first.
MODULES = [
    "tinytensor",
    "tinytensor.nn",
    "tinytensor.nn.init",
    "tinytensor.optim",
    "tinytensor.random",
    "tinytensor.linalg",
    "tinytensor.parallel",
    "tinytensor.distributed",
    "tinytensor.autograd.op",
    "tinytensor.autograd.fused",
    "tinytensor.autograd.engine",
    "tinyformer",
    "tinyformer.plots",
]


def names_of(module: str) -> list[str]:
    """The public names of a module, without those of modules."""
    found = sys.modules.get(module) or importlib.import_module(module)
    return sorted((name for name in found.__all__ if not inspect.ismodule(getattr(found, name))), key=str.lower)


PUBLIC = {f"{module}.{name}" for module in MODULES for name in names_of(module)}
HOMES: dict[int, str] = {}  # the name under which an object is described, by its id()
for full in sorted(PUBLIC, key=lambda name: (MODULES.index(name.rpartition(".")[0]), name)):
    home, _, short = full.rpartition(".")
    HOMES.setdefault(id(getattr(sys.modules[home], short)), full)


def other_types() -> dict[str, str]:
    """The types that the reference describes under the name of their file, as "Other types". A key is such
    as ``tinyformer.Heard``, a value the full name."""
    found = {}
    for page in (Path(__file__).parents[1] / "reference").glob("*.rst"):
        for home, names in re.findall(r"(?m)^\.\. reference:: (\S+)\n\n((?:   \S.*\n)+)", page.read_text(encoding="utf-8")):
            if home not in MODULES:
                found |= {f"{home.partition('.')[0]}.{name}": f"{home}.{name}" for name in names.split()}
    return found


OTHERS = other_types()


# ------------------------------------------------------------------------------------------------------------ docstrings

NAMED_TUPLE = ("Alias for field number", "Create new instance of")  # what Python writes into a named tuple's docstrings


def escaped(text: str) -> str:
    """Plain text as reStructuredText without markup."""
    return re.sub(r"[\\*`|]|(?<=\w)_(?!\w)", r"\\\g<0>", text)


def public_name(word: str, package: str, value: Any) -> str | None:
    """The full name of what a docstring of ``value`` calls by this ``word``."""
    word = re.sub(r"^tt\.", "tinytensor.", word.removesuffix("()"))
    own = parameters(value)
    if word in own or not re.fullmatch(r"[A-Za-z_][\w.]*", word):
        return None
    if package == "tinytensor" and f"tinytensor.{word}" not in PUBLIC and word in ("backward", "grad", "detach"):
        return f"tinytensor.Tensor.{word}"
    modules = [f"{package}."] + [f"{module}." for module in MODULES if module.startswith(package)]
    word = word.removeprefix("functional.")
    found = next((name for name in [word, *(module + word for module in modules)] if name in PUBLIC), None)
    return found or OTHERS.get(f"{package}.{word}")


def parameters(value: Any) -> Iterable[str]:
    """The names of a function's parameters, or of a class's."""
    try:
        return inspect.signature(value).parameters
    except (TypeError, ValueError):
        return ()


def as_rst(lines: list[str], name: str, value: Any) -> list[str]:
    """A docstring's lines as reStructuredText. Examples are left as they are, and so is a block of code after ``::``."""
    package = name.partition(".")[0]

    home, _, parent = name.rpartition(".")[0].rpartition(".")
    kind = value if inspect.isclass(value) else getattr(sys.modules.get(home), parent, None)

    def own(word: str) -> bool:  # as in ``scatter``, where the class that is described has a method of this name
        return inspect.isclass(kind) and word.isidentifier() and hasattr(kind, word)

    def literal(match: re.Match[str]) -> str:
        found = None if own(match[1].removesuffix("()")) else public_name(match[1], package, value)
        return f":py:obj:`{match[1]} <{found}>`" if found and found != name else match[0]

    blocks = re.split(r"\n(?:[ \t]*\n)+", "\n".join(lines))
    for i, block in enumerate(blocks):
        is_code = block.lstrip().startswith(">>>") or (i and blocks[i - 1].endswith("::") and block.startswith("    "))
        if block.startswith("Attributes:\n"):  # and a line for each, as "name: what it is"
            names = [line.strip().partition(": ") for line in block.strip().split("\n")[1:]]
            blocks[i] = "\n\n".join(["Attributes:", *(f"* ``{name}``: {escaped(text)}" for name, _, text in names)])
        elif not is_code:
            parts = re.split(r"(``.+?``)", block, flags=re.DOTALL)
            parts = [re.sub(r"(?s)``(.+?)``", literal, part) if n % 2 else escaped(part) for n, part in enumerate(parts)]
            for n in range(1, len(parts), 2):  # as in ``if``s: what follows a literal at once must not belong to it
                parts[n] = r"\ " * parts[n - 1][-1:].isalnum() + parts[n] + r"\ " * parts[n + 1][:1].isalnum()
            blocks[i] = re.sub(r"(?m)^(\s*)\\\* ", r"\1* ", "".join(parts))
    return "\n\n".join(blocks).split("\n")


def process_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Autodoc's event: change the lines of a docstring in place."""
    lines[:] = [line for line in lines if not line.startswith(NAMED_TUPLE)]
    lines[:] = as_rst(lines, name, value)
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        lines += settings(value)


def settings(kind: type) -> Iterator[str]:
    """The fields of a dataclass that have a help text, with their defaults."""
    fields = [field for field in dataclasses.fields(kind) if field.metadata.get("help")]
    if fields:
        yield from ["", ".. rubric:: Settings", ""]
    for field in fields:
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        yield f"* ``{field.name}{default}``: {escaped(field.metadata['help'])}"


def methods() -> Iterator[str]:
    """The ops that are methods of Tensor as well as functions."""
    members = vars(tinytensor.Tensor).items()
    found = {name: value for name, value in members if callable(value) and HOMES.get(id(value))}
    for name, value in sorted(found.items()):
        signature = sphinx_inspect.signature(value)
        rest = signature.replace(parameters=list(signature.parameters.values())[1:])
        shown = sphinx_inspect.stringify_signature(rest, unqualified_typehints=True)
        see = f"See :py:func:`tinytensor.{name} <{HOMES[id(value)]}>`"
        yield from [f".. py:method:: tinytensor.Tensor.{name}{shown}", "", f"   {see}: {summary(value)}", ""]


def summary(value: Any, name: str = "tinytensor") -> str:
    """The first sentence of a docstring, as reStructuredText."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"(])", text, maxsplit=1)[0]
    return as_rst([sentence.removesuffix("::")], name, value)[0]


# --------------------------------------------------------------------------------------------------------------- entries


class Reference(SphinxDirective):
    """A table of names, and the entry of each; see the head of this file."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"of": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        prefix = self.arguments[0]
        module = importlib.import_module(prefix)
        names = " ".join(self.content).split() or names_of(self.options.get("of", prefix))
        lines = [".. list-table::", "   :class: names", "   :widths: 32 68", ""]
        for name in names:
            value = getattr(module, name)
            lines += [f"   * - :py:obj:`{name} <{prefix}.{name}>`", f"     - {summary(value, f'{prefix}.{name}')}"]
        for name in names:
            lines += ["", *entry(f"{prefix}.{name}", getattr(module, name))]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=f"<reference of {prefix}>"), 0, node)
        return node.children


class OpMethods(SphinxDirective):
    """``.. op-methods::`` writes an entry for each op that is a method of Tensor."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(list(methods()), source="<methods of Tensor>"), 0, node)
        return node.children


def entry(name: str, value: Any) -> list[str]:
    """The directive that describes a public name."""
    if inspect.isclass(value):
        bases = [] if value.__bases__ in ((object,), (Generic,)) else ["   :show-inheritance:"]
        kind = "exception" if issubclass(value, Exception) else "class"
        return [f".. auto{kind}:: {name}", "   :members:", "   :member-order: bysource", *bases, ""]
    return [f".. autofunction:: {name}", ""]


def process_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Autodoc's event: write defaults as users would. Those with angle brackets would keep Sphinx from reading the types."""
    if signature:
        signature = re.sub(r"<function (\w+)>", r"\1", signature)
        signature = re.sub(r"\bdtype\(('\w+')\)", r"\1", signature)
    return signature, returned


def skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Autodoc's event: ops as methods have entries by ``methods``."""
    return True if id(value) in HOMES else None


def public_bases(app: Sphinx, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    """Autodoc's event: in place of a private base, its own bases."""
    bases[:] = [shown for base in bases for shown in (base.__bases__ if base.__name__.startswith("_") else (base,))]


def evaluate_type_checking_imports() -> None:
    """Run the imports that are for type checkers only, so that autodoc finds the types that annotations name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("tinytensor", "tinyformer") and getattr(module, "__file__", None):
            for part in ast.parse(inspect.getsource(module)).body:
                if isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING":
                    exec(compile(ast.Module(part.body, []), module.__file__, "exec"), vars(module))


def find_public(app: Sphinx, env: Any, node: pending_xref, text: nodes.TextElement) -> nodes.Node | None:
    """A type that annotations name by the file that defines it, or by its bare name, is described under its public name."""
    last = node.get("reftarget", "").rpartition(".")[2]
    found = [name for name in HOMES.values() if name.rpartition(".")[2] == last]
    if node.get("refdomain") != "py" or len(found) != 1 or node["reftarget"] == found[0]:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, text)


def show_bases(app: Sphinx, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    """In place of a private base come its own bases. That a class is generic can be seen where it uses its type variable."""
    shown = [each for base in bases for each in (base.__bases__ if base.__name__.startswith("_") else [base])]
    bases[:] = [base for base in shown if get_origin(base) is not Generic]


def add_anchors(app: Sphinx, document: nodes.document) -> None:
    """The pages of sources link back to an entry by the module under which viewcode first met a name of their file. Where an
    entry has another name, it gets that anchor, too."""
    for signature in document.findall(desc_signature):
        for link in signature.findall(viewcode_anchor):
            module = link["reftarget"].removeprefix(f"{OUTPUT_DIRNAME}/").replace("/", ".")
            anchor = f"{app.env._viewcode_modules[module][-1]}.{signature['fullname']}"
            if anchor not in signature["ids"]:
                signature["ids"].append(anchor)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive, and what makes docstrings and types fit."""
    for name in sorted(PUBLIC):
        home, _, short = name.rpartition(".")
        getattr(sys.modules[home], short)  # tinyformer loads a file when one of its names is used
    evaluate_type_checking_imports()
    app.add_directive("reference", Reference)
    app.add_directive("op-methods", OpMethods)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-bases", show_bases)
    app.connect("doctree-read", add_anchors, priority=900)  # after viewcode's
    app.connect("missing-reference", find_public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
