"""Write a graph as an ONNX file. Only this module needs the onnx package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tinyformer.common.errors import UserError
from tinyformer.export.graph import DTYPES, Graph, Port
from tinyformer.export.models import Axes, bert_graph, decoder_graph, encoder_graph, gpt_graph, module_graph, sentence_graph
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.quantizing import refuse_additions, refuse_quantized
from tinyformer.models.sentences import SentenceModel
from tinyformer.models.transformer import Transformer
from tinytensor.device.disk import atomic_write
from tinytensor.nn import Module

OPSET = 20  # the first with the Gelu operator
IR_VERSION = 9  # the file format version of this opset

LARGEST_FILE = 2_000_000_000  # bytes of weights; protobuf files are limited to 2 GiB
_SMALL = 1024  # bytes; constants up to this size, such as shapes, stay in the main file
_ALIGNMENT = 4096  # for memory mapping


def export_onnx(model: Module, path: str | Path, cache: bool = True, inputs: Mapping[str, Axes] | None = None) -> list[Path]:
    """Export a model to an ONNX file. Return the paths written.

    The graph computes the model's ``forward`` in evaluation mode and float32, for any batch size and length. Inputs and outputs
    are named as in Hugging Face optimum. See ``gpt_graph``, ``bert_graph``, ``sentence_graph``, ``encoder_graph`` and
    ``decoder_graph``. If ``cache`` is False, a GPT has no inputs and outputs for keys and values.

    A Transformer becomes two files, ``encoder_NAME`` and ``decoder_NAME``, if ``path`` ends in NAME. Weights over 2 GB go into
    a second file, NAME.data, which must stay next to the first.

    Any other module needs ``inputs``, the arguments of its ``forward``: a dtype, then axes as numbers or names. Named axes may
    have any length. ``forward`` must take the same branches for lengths from 3 to 100, and is assumed to do so for others. A
    single result is named ``output``; several are ``output_0`` and so on; a dict has its own names.

    Raises UserError for an unsupported op, an op whose values affect control flow, a module without ``inputs`` or with
    quantized weights, and a ``path`` that does not end in .onnx or whose folder does not exist. Raises ImportError without the
    onnx package. Raises OSError if a file cannot be written; an existing file stays intact.

    >>> class Doubled(tt.nn.Module):
    ...     def forward(self, x):
    ...         return {"twice": x * 2}
    >>> export_onnx(Doubled(), "doubled.onnx", inputs={"x": ("float32", "batch", 3)})  # doctest: +SKIP
    [PosixPath('doubled.onnx')]
    """
    path = check_path(path)
    refuse_additions(model, "exported")
    refuse_quantized(model, "exported", "export it in float32")
    try:
        graphs = _graphs(model, path, cache, inputs)
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # unsupported lengths, random numbers, inputs
        raise UserError(f"{type(model).__name__} cannot be exported to ONNX: {error}") from error
    import_onnx()  # fail before creating a file
    return [written for file, graph in graphs.items() for written in _write(graph.without_unread(), file)]


def check_path(path: str | Path, suffix: str = ".onnx") -> Path:
    """Return the path. Raises UserError unless a file with this ``suffix`` can be written there."""
    path = Path(path)
    if path.suffix != suffix:
        raise UserError(f"path must end in {suffix}, got {path}")
    if not path.parent.is_dir():
        raise UserError(f"folder not found: {path.parent}. Create it first")
    if path.is_dir():
        raise UserError(f"{path} is a folder: pass the path of a file")
    return path


def parts_of(path: Path) -> tuple[Path, Path]:
    """Return the paths of the encoder and the decoder."""
    return path.with_name(f"encoder_{path.name}"), path.with_name(f"decoder_{path.name}")


def _graphs(model: Module, path: Path, cache: bool, inputs: Mapping[str, Axes] | None) -> dict[Path, Graph]:
    """Return the graphs of a model by path."""
    name = type(model).__name__
    if not cache and not isinstance(model, GPT):
        raise UserError(f"cache=False is only for a GPT, got {name}: leave it out")
    if inputs is not None:
        return {path: module_graph(model, inputs)}
    if isinstance(model, GPT):
        return {path: gpt_graph(model, cache)}
    if isinstance(model, BertForMaskedLM):
        return {path: bert_graph(model)}
    if isinstance(model, SentenceModel):
        return {path: sentence_graph(model)}
    if not isinstance(model, Transformer):
        raise UserError(f"{name} cannot be exported to ONNX without inputs, such as {{'ids': ('int64', 'batch', 'length')}}")
    if type(model).forward is not Transformer.forward:
        raise UserError(f"{name} overrides forward, but ONNX files hold encode and decode: override these")
    encoder, decoder = parts_of(path)
    return {encoder: encoder_graph(model), decoder: decoder_graph(model)}


def _write(graph: Graph, path: Path) -> list[Path]:
    """Write the graph. If weights do not fit, write them to a second file."""
    onnx = import_onnx()
    if sum(array.nbytes for array in graph.constants.values()) <= LARGEST_FILE:
        content = as_onnx(graph, [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()])
        with atomic_write(path) as file:
            file.write(content.SerializeToString())
        return [path]
    beside = path.with_name(f"{path.name}.data")
    with atomic_write(path) as file, atomic_write(beside) as weights:
        tensors = [_put_aside(array, name, weights, beside.name) for name, array in graph.constants.items()]
        file.write(as_onnx(graph, tensors).SerializeToString())
    return [path, beside]


def _put_aside(array: Any, name: str, file: BinaryIO, location: str) -> Any:
    """Write an array to the weights file, named ``location``. Return its tensor for the graph."""
    onnx = import_onnx()
    if array.nbytes <= _SMALL:
        return onnx.numpy_helper.from_array(array, name)
    file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
    entry = {"location": location, "offset": file.tell(), "length": array.nbytes}
    file.write(memoryview(array).cast("B"))
    tensor = onnx.TensorProto(name=name, data_type=DTYPES[array.dtype.name], dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entry.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def as_onnx(graph: Graph, constants: list[Any]) -> Any:
    """Convert the graph to an ``onnx.ModelProto``, with its constants as ``onnx.TensorProto``s."""
    helper = import_onnx().helper

    def port(port: Port) -> Any:
        return helper.make_tensor_value_info(port.value.name, DTYPES[port.dtype], port.shape)

    nodes = [
        helper.make_node(
            node.operator,
            [x.name for x in node.inputs],
            [x.name for x in node.outputs],
            name=f"{node.module}/{node.outputs[0].name}",  # shown in runtime errors
            **node.attributes,
        )
        for node in graph.nodes
    ]
    proto = helper.make_graph(nodes, "tinyformer", [*map(port, graph.inputs)], [*map(port, graph.outputs)], constants)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(proto, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tinyformer")


def import_onnx() -> Any:
    """Return the onnx package. Raises ImportError with the install command."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ImportError("ONNX needs the package onnx: pip install 'tinyformer[onnx]'") from None
    return onnx
