"""Write the model of a run to a file of ONNX: ``tinyformer export RUN model.onnx``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tinyformer.common.files import read_file
from tinyformer.export.runs import load_run
from tinyformer.export.usage import lines_that_run
from tinyformer.export.writing import check_path, export_onnx
from tinyformer.runs.run_folder import RunFolder
from tinyformer.scripting.command_line import Parser, some_path
from tinyformer.tasks.trained import names_of_kinds
from tinytensor.device.disk import atomic_write


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="tinyformer export",
        description="Write the best model of a run to an ONNX file, and its tokenizer beside it (model.tokenizer.json), and "
        "print the lines of Python that run it in onnxruntime. A run is that of "
        f"{names_of_kinds()}, whose network is a Transformer. A translator's encoder and decoder become a file each: "
        "encoder_model.onnx and decoder_model.onnx.",
    )
    parser.add_argument("folder", help="the run's folder, such as runs/char_gpt", type=some_path, metavar="RUN")
    parser.add_argument("file", help="the file to write; its name ends in .onnx", type=some_path, metavar="FILE")
    parser.add_argument(
        "--no-cache",
        help="a GPT that reads the whole text for each token, without inputs and outputs for keys and values",
        action="store_false",
        dest="cache",
    )
    parser.set_defaults(run=export)
    return parser.parse_args(words)


def export(arguments: argparse.Namespace) -> None:
    """Export as the words of the command line say, and print how to run what was written."""
    path = check_path(arguments.file)
    run = load_run(arguments.folder)
    written = export_onnx(run.model, path, arguments.cache)
    tokenizer = path.with_suffix(".tokenizer.json")
    with atomic_write(tokenizer) as file:
        file.write(read_file(RunFolder(arguments.folder).tokenizer))

    sizes = [f"{file} ({file.stat().st_size / 1e6:,.1f} MB)" for file in written]
    print(f"Wrote {', '.join(sizes)} and {tokenizer}")
    print("These lines run the model; they need onnxruntime (pip install 'tinyformer[onnx]'):\n")
    print(lines_that_run(run, path, tokenizer, arguments.cache), end="")
