"""Export a run's model to ONNX (``tinyformer export RUN model.onnx``) or to a web page (``--web page.html``)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tinyformer.commands.command_line import Parser, add_code_flag, some_path
from tinyformer.common.files import read_file
from tinyformer.export.runs import lines_that_run, load_run
from tinyformer.export.web import web_page
from tinyformer.export.writing import check_path, export_onnx
from tinyformer.training.opening import names_of_kinds
from tinyformer.training.run_folder import RunFolder
from tinytensor.device.disk import atomic_write, write_text


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog="tinyformer export",
        description="Write the best model of a run to an ONNX file, and its tokenizer beside it (model.tokenizer.json), and "
        "print the lines of Python that run it in onnxruntime. A run is that of "
        f"{names_of_kinds()}, whose network is a Transformer. A translator's encoder and decoder become a file each: "
        "encoder_model.onnx and decoder_model.onnx. With --web, a GPT whose tokens are characters becomes one page, which "
        "writes on as one types, in any browser, without a server or a network.",
    )
    add_code_flag(parser)
    parser.add_argument("folder", help="run folder", type=some_path, metavar="RUN")
    parser.add_argument("file", help="output file (.onnx)", type=some_path, metavar="FILE", nargs="?")
    parser.add_argument("--web", help="write a self-contained web page instead (.html)", type=some_path, metavar="FILE")
    parser.add_argument(
        "--no-cache",
        help="export a GPT without the KV cache (recomputes all tokens each step)",
        action="store_false",
        dest="cache",
    )
    parser.has_no_effect("cache", lambda arguments: arguments.web is not None, "with --web")
    parser.set_defaults(run=export)
    arguments = parser.parse_args(words)
    if (arguments.file is None) == (arguments.web is None):
        parser.error("name one file to write: model.onnx, or --web page.html")
    return arguments


def export(arguments: argparse.Namespace) -> None:
    """Export a run and print how to run the exported model."""
    if arguments.web is not None:
        return _export_page(arguments)
    path = check_path(arguments.file)
    run = load_run(arguments.folder)
    written = export_onnx(run.model, path, arguments.cache)
    tokenizer = path.with_suffix(".tokenizer.json")
    with atomic_write(tokenizer) as file:
        file.write(read_file(RunFolder(arguments.folder).tokenizer))

    sizes = [f"{file} ({file.stat().st_size / 1e6:,.1f} MB)" for file in written]
    print(f"Wrote {', '.join(sizes)} and {tokenizer}")
    print("Run the model with these lines; they need onnxruntime (pip install 'tinyformer[onnx]'):\n")
    print(lines_that_run(run, path, tokenizer, arguments.cache), end="")


def _export_page(arguments: argparse.Namespace) -> None:
    path = check_path(arguments.web, ".html")
    page = web_page(arguments.folder)
    write_text(path, page)
    print(f"Wrote {path} ({len(page) / 1e6:,.1f} MB). Open it in a browser. It needs no other file.")
