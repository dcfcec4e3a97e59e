"""Settings of Sphinx for the site: ``sphinx-build -W -n docs docs/_build``. Neither the build nor a page fetches anything."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

project = "tinytensor and tinyformer"
author = "the authors of tinytensor"
copyright = author
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]  # the second is what myst-nb writes

extensions = [
    "myst_nb",  # Markdown, and lessons whose code is run
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "mathematics",
    "reference",
    "questions",
    "code_links",
    "downloads",
    "disk",
    "live",
    "touch",
    "slim",
]

# -- Markdown and lessons

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline", "attrs_block"]
myst_heading_anchors = 3
nb_execution_mode = "cache"  # a lesson is run again when its code changes; delete docs/_build to run all
nb_execution_cache_path = str(DOCS / "_build" / ".jupyter_cache")
nb_execution_timeout = 600  # seconds, for a cell: most take less than one, but a busy machine can be ten times slower
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress, and the line that says that kernels are compiled

# -- the reference

smartquotes = False  # the quotes in docstrings are often Python's
autoclass_content = "both"  # the docstring of __init__, too
autodoc_inherit_docstrings = False  # what a subclass does not describe anew stands with its base
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 130
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|argparse|collections|contextlib|graphviz|numpy|os|pathlib|typing)\..*"),  # of Python and other packages
    (r"py:.*", r".*\.(AnyModule|Function|Member|Result|Self|Settings|Shard|recurrent\.State)"),  # type variables
]

# -- how pages look

html_math_renderer = "ziamath"
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js", "search_from_disk.js"]
html_copy_source = False  # lessons come as notebooks, and the rest is in the repository
html_show_sphinx = False
pygments_style = "default"  # each of its colours has a contrast of 4.5 or more
pygments_dark_style = "monokai"
