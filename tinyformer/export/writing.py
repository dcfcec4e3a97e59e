"""A graph as a file of ONNX. This is the only file that needs the package onnx."""

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

OPSET = 20  # the first with the operator Gelu
IR_VERSION = 9  # of the file's format: the one that came with this opset, which every program reads that knows the opset

LARGEST_FILE = 2_000_000_000  # bytes of weights: a file of the format, which is protobuf's, holds at most 2 GiB
_SMALL = 1024  # bytes: constants up to this size, such as shapes, are never put aside
_ALIGNMENT = 4096  # so that a program can map the weights into memory


def export_onnx(model: Module, path: str | Path, cache: bool = True, inputs: Mapping[str, Axes] | None = None) -> list[Path]:
    """Write a model to an ONNX file. Returns the paths that were written.

    The graph is what the model's own ``forward`` computes, in evaluation mode and in float32. It takes any batch size and any
    length. The names of its inputs and outputs are those of Hugging Face's optimum; ``gpt_graph``, ``bert_graph``,
    ``sentence_graph``, ``encoder_graph`` and ``decoder_graph`` list them. Without ``cache`` a GPT has no inputs and outputs for
    keys and values.

    A Transformer becomes two files: ``encoder_NAME`` and ``decoder_NAME``, where ``path`` ends in NAME. Weights of more than 2
    GB go into a file of their own, NAME.data, which must stay beside the other.

    Any other module needs ``inputs``, the arguments of its ``forward``: the dtype of each and its axes, of which those with a
    name may have any length: ``forward`` must do the same for all from 3 to 100, and for others it is taken to. What it returns
    are the outputs: a tensor is ``output``, several are ``output_0`` and so on, and a dict has names.

    Raises UserError for a model with an op that a graph cannot compute or whose values decide what is computed, for one of
    another kind without ``inputs`` or with quantized weights, for a ``path`` that does not end in .onnx or whose folder does
    not exist, and ImportError if the package onnx is missing. Raises OSError if a file cannot be written; an existing one then
    stays.

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
    except (TypeError, ValueError, RuntimeError) as error:  # of a length that the model does not take; random numbers; inputs
        raise UserError(f"{type(model).__name__} cannot be exported to ONNX: {error}") from error
    import_onnx()  # before a file is begun, in case it is missing
    return [written for file, graph in graphs.items() for written in _write(graph.without_unread(), file)]


def check_path(path: str | Path, suffix: str = ".onnx") -> Path:
    """The path. Raises UserError unless it can be that of a file whose name ends in the ``suffix``."""
    path = Path(path)
    if path.suffix != suffix:
        raise UserError(f"{path} must end in {suffix}")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the path of a file")
    return path


def parts_of(path: Path) -> tuple[Path, Path]:
    """The paths of the encoder and the decoder."""
    return path.with_name(f"encoder_{path.name}"), path.with_name(f"decoder_{path.name}")


def _graphs(model: Module, path: Path, cache: bool, inputs: Mapping[str, Axes] | None) -> dict[Path, Graph]:
    """Which graphs a model becomes, by their paths."""
    name = type(model).__name__
    if not cache and not isinstance(model, GPT):
        raise UserError(f"only a GPT can be exported without its cache, not {name}")
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
        raise UserError(f"{name} changes forward, but ONNX files hold encode and decode: change these")
    encoder, decoder = parts_of(path)
    return {encoder: encoder_graph(model), decoder: decoder_graph(model)}


def _write(graph: Graph, path: Path) -> list[Path]:
    """Write the graph, and its weights into a second file if one cannot hold both."""
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
    """Write an array to the file of the weights, which is called ``location``. Returns what the graph says about it."""
    onnx = import_onnx()
    if array.nbytes <= _SMALL:
        return onnx.numpy_helper.from_array(array, name)
    file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
    where = {"location": location, "offset": file.tell(), "length": array.nbytes}
    file.write(memoryview(array).cast("B"))
    tensor = onnx.TensorProto(name=name, data_type=DTYPES[array.dtype.name], dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def as_onnx(graph: Graph, constants: list[Any]) -> Any:
    """The graph as an ``onnx.ModelProto``. ``constants`` are its constants as the ``onnx.TensorProto`` of their values."""
    helper = import_onnx().helper

    def port(port: Port) -> Any:
        return helper.make_tensor_value_info(port.value.name, DTYPES[port.dtype], port.shape)

    nodes = [
        helper.make_node(
            node.operator,
            [x.name for x in node.inputs],
            [x.name for x in node.outputs],
            name=f"{node.module}/{node.outputs[0].name}",  # which errors of those that run it show
            **node.attributes,
        )
        for node in graph.nodes
    ]
    whole = helper.make_graph(nodes, "tinyformer", [*map(port, graph.inputs)], [*map(port, graph.outputs)], constants)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(whole, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tinyformer")


def import_onnx() -> Any:
    """The package onnx. Raises ImportError with the way to install it."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ImportError("ONNX needs a package that is not installed: pip install 'tinyformer[onnx]'") from None
    return onnx
