"""Render a Jinja chat template as transformers does: read a JSON request from standard input, and write a JSON response to
standard output.

A template is untrusted code that comes with a model. Jinja's sandbox protects Python's internals, but a template could still
run forever or fill the memory. The system therefore limits this process's time and memory.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

SECONDS = 2  # of processor time; published templates take milliseconds
MEMORY = 1 << 29  # bytes, including Python
LONGEST = 1 << 20  # rendered characters; tokenizing this many takes seconds and hundreds of megabytes
LEAST_JINJA = (3, 1, 6)  # earlier versions have known sandbox escapes


def limit() -> None:
    """Limit this process to ``SECONDS`` and ``MEMORY``. Windows supports neither limit and macOS no memory limit. On these
    systems, only the caller's timeout applies."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # disable core dumps
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def environment() -> Any:
    """Return the Jinja environment that transformers uses for templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block ``{% generation %}``, which marks the model's answers. Here it just renders its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            """Return a call of ``_shown`` with the block's content as its caller."""
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

    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    result.filters["tojson"] = tojson  # Jinja's own filter escapes <, > and &
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = lambda style: datetime.now().strftime(style)
    return result


def rendered(template: str, values: list[dict[str, Any]]) -> list[str]:
    """Render a template with each set of values. Raises ValueError if a result is too long, and any error of the template."""
    compiled = environment().from_string(template)
    texts = []
    for one in values:
        texts.append(compiled.render(one))
        if len(texts[-1]) > LONGEST:
            raise ValueError(f"the rendered text is longer than {LONGEST:,} characters")
    return texts


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return {"texts": [...]}, or {"error": message}, or {"lacking": package}."""
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
    except Exception as error:  # a template can raise any exception
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return {"error": f"{line}{str(error)[:400] or type(error).__name__}"}


if __name__ == "__main__":
    limit()
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
