"""Renders a chat template of Jinja as transformers does, in a process of its own: the program reads a request on its standard
input, and answers on its standard output, both in JSON.

A template comes with a model, and is a program of somebody else. Jinja's sandbox keeps it from reaching Python's insides, but
lets it run for ever, or fill the memory. So the system stops this process where it takes too long or too much.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

SECONDS = 2  # of a processor; a template of a published model takes some milliseconds
MEMORY = 1 << 29  # bytes, Python itself included
LONGEST = 1 << 20  # characters of what is rendered; a tokenizer takes seconds and hundreds of megabytes for so many
LEAST_JINJA = (3, 1, 6)  # earlier ones have known ways out of the sandbox


def limit() -> None:
    """Have the system stop this process after ``SECONDS``, and refuse it more than ``MEMORY``. Windows has neither limit, and
    macOS not that of memory: there the caller's clock is what stops it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a process that is stopped leaves no picture of its memory behind
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def environment() -> Any:
    """The environment of Jinja in which transformers renders templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block ``{% generation %}``, which marks what the model has said: here it shows its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            """A call of ``_shown``, with the content of the block as what it may call."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_shown"), [], [], body).set_lineno(line)

        def _shown(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: Any) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson  # Jinja's own writes <, > and & as escapes
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda how: datetime.now().strftime(how)
    return made


def rendered(template: str, values: list[dict[str, Any]]) -> list[str]:
    """The texts that a template makes of values. Raises ValueError if one is too long, and whatever the template does."""
    compiled = environment().from_string(template)
    texts = []
    for one in values:
        texts.append(compiled.render(one))
        if len(texts[-1]) > LONGEST:
            raise ValueError(f"what it makes is longer than {LONGEST:,} characters")
    return texts


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"texts": [...]}; or {"error": ...}; or {"lacking": ...}, a package."""
    try:
        import jinja2

        if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit()) < LEAST_JINJA:
            return {"lacking": f"jinja2>={'.'.join(map(str, LEAST_JINJA))}, and has {jinja2.__version__}"}
    except ImportError:
        return {"lacking": "jinja2"}
    try:
        return {"texts": rendered(request["template"], request["values"])}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it is nested too deeply, or calls itself without end"}
    except Exception as error:  # a template can raise any
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return {"error": f"{line}{str(error)[:400] or type(error).__name__}"}


if __name__ == "__main__":
    limit()
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
