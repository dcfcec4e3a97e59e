"""GPT: a decoder-only Transformer that predicts the next token (Radford et al. 2019). Read this file from top to bottom."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_cache_fits, check_model_fits
from tinyformer.common.settings import at_least, changed_settings, check_fields, setting, settings_from
from tinyformer.models.activations import ACTIVATIONS, CHOICES
from tinyformer.models.blocks import Block, BlockConfig, Cache
from tinyformer.models.positions import RotaryScaling, absolute_positions, add_positions, check_positions, rotary_positions
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.nn import Dropout, Embedding, Linear, Module, ModuleList, init
from tinytensor.nn.hooks import show
from tinytensor.nn.quantization import put_weight, quantized_weights
from tinytensor.nn.weights import linear, linear_cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """Configuration of a GPT. Raises SettingError for an invalid value.

    The settings after ``d_ff`` support Llama, Qwen and other decoder-only models. ``norm_eps`` is the eps of each norm.
    ``tie_output`` shares the token embedding's weights with the output layer. ``sliding_window`` limits attention to that many
    tokens, including the current one (Mistral); 0: no limit. ``scale_embeddings`` multiplies the token embeddings by
    sqrt(d_model) (Gemma). Sinusoidal positions always scale them. For the other settings, see ``MultiHeadAttention`` and
    ``RotaryPositions``.

    If ``d_ff`` is 0, it becomes 4 * d_model. A gated activation has three matrices instead of two, so it uses two thirds of
    that (Shazeer 2020), rounded up to a multiple of 16.

    >>> from tinyformer import GPTConfig
    >>> GPTConfig(vocab_size=65).num_parameters()
    804096
    """

    vocab_size: int
    block_size: int = setting(64, "maximum context length, in tokens")
    num_layers: int = setting(4, "number of blocks")
    num_heads: int = setting(4, "attention heads per block; must divide the width")
    d_model: int = setting(128, "width of the model")
    dropout: float = setting(0.0, "dropout probability", changeable=True)
    bias: bool = setting(False, "use biases in linear layers and norms")
    positions: str = setting("learned", "learned, sinusoidal or rotary")
    norm: str = setting("layer", "layer or rms")
    activation: str = setting("gelu_tanh", CHOICES)
    query_key_norm: bool = setting(False, "RMS norms of each head's queries and keys")
    d_ff: int = setting(0, "hidden width of the feed-forward networks; 0: 4 times the width, or 8/3 with a gated activation")
    norm_eps: float = 1e-5
    tie_output: bool = True
    num_key_value_heads: int = 0
    d_head: int = 0
    query_key_value_bias: bool = False
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    sliding_window: int = 0
    scale_embeddings: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, vocab_size=1, block_size=1, num_layers=1, d_ff=0, sliding_window=0)
        if not self.d_ff:  # set here so that saved runs record the width
            is_gated = self.activation in ACTIVATIONS and ACTIVATIONS[self.activation].is_gated
            object.__setattr__(self, "d_ff", -(-self.d_model // 6) * 16 if is_gated else 4 * self.d_model)
        _, d_head = self.block.head_sizes  # building ``block`` validates the BlockConfig settings
        check_positions(self, d_head, choices=("learned", "sinusoidal", "rotary"))
        if self.positions != "rotary" and (self.rotary_base != 10000.0 or self.rotary_scaling):
            raise SettingError(f"rotary_base and rotary_scaling are for rotary positions, not {self.positions} ones")
        if self.rotary_base <= 1:
            raise SettingError(f"rotary_base must be above 1, got {self.rotary_base}")

    @property
    def block(self) -> BlockConfig:
        """Configuration of each block, copied from the settings of the same names, with pre-norm."""
        return settings_from(BlockConfig, vars(self), norm_first=True)

    @property
    def embedding_scale(self) -> float:
        """Scale factor of the token embeddings. Unscaled embeddings would be tiny compared to sines of size 1."""
        return math.sqrt(self.d_model) if self.scale_embeddings or self.positions == "sinusoidal" else 1.0

    def num_parameters(self) -> int:
        """Return the number of parameters without building the model."""
        positions = int(self.block_size) if self.positions == "learned" else 0
        outputs = 0 if self.tie_output else int(self.vocab_size)
        embeddings = (int(self.vocab_size) + positions + outputs) * int(self.d_model)
        return embeddings + int(self.num_layers) * self.block.block_parameters() + self.block.norm_parameters()

    def saved_numbers(self) -> int:
        """Return a lower bound on the values per token that training saves for the backward pass."""
        return int(self.num_layers) * self.block.saved_numbers()


class GPT(Module):
    """A decoder-only Transformer: token and position embeddings, pre-norm blocks, a final norm and an output layer. By default,
    the output layer is tied to the token embedding.

    "embedded" hooks can read the scaled token embeddings. Raises SettingError if the model does not fit in memory.

    >>> from tinyformer import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32))
    >>> model(tt.zeros((8, 64), dtype=int)).shape
    (8, 64, 65)
    """

    def __init__(self, config: GPTConfig):
        check_model_fits(config.num_parameters(), config.num_layers, "d_model", "num_layers", "block_size")
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.position_embedding = absolute_positions(config.positions, config.block_size, config.d_model)
        _, d_head = config.block.head_sizes
        rotary = rotary_positions(config.positions, d_head, config.rotary_base, config.rotary_scaling)
        self.dropout = Dropout(config.dropout)
        self.blocks = ModuleList(Block(config.block, rotary=rotary) for _ in range(config.num_layers))
        self.norm = config.block.make_norm()
        self.output = None if config.tie_output else Linear(config.d_model, config.vocab_size, bias=False)
        self.apply(self._initialise)

    def _initialise(self, module: Module) -> None:
        """Initialize as GPT-2 does: normal weights, zero biases. The weights of the 2 * num_layers layers that write to the
        residual stream are divided by sqrt(2 * num_layers).

        GPT-2's standard deviation of 0.02 suits its width of 768 but makes narrower models learn slowly. Linear layers use 0.02
        * sqrt(768 / width).
        """
        std = 0.02 * math.sqrt(768 / self.config.d_model)
        if isinstance(module, Embedding):
            init.normal_(module.weight, std=0.02)
        if isinstance(module, Linear):
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        if isinstance(module, Block):
            for layer in (module.attention.output, module.feed_forward.down):
                init.normal_(layer.weight, std=std / math.sqrt(2 * self.config.num_layers))

    @checked
    def forward(self, ids: Tensor, cache: Cache | None = None, last_only: bool = False) -> Tensor:
        """Map token ids (batch, length) to logits for each next token, (batch, length, vocab_size). If ``last_only``, return
        only the logits after the last token, (batch, 1, vocab_size). Generation needs no others.

        If a ``cache`` is passed, the ids are the tokens after the cached ones. Raises ValueError for more than block_size
        tokens, including cached ones, and if the cache is longer than the sliding window.
        """
        x = self._residual_stream(ids, cache)
        return self.logits_of(x[:, -1:] if last_only else x)

    @checked
    def vectors(self, ids: Tensor) -> Tensor:
        """Map token ids (batch, length) to the inputs of the output layer, (batch, length, d_model). Raises ValueError as
        ``forward`` does."""
        return self.norm(self._residual_stream(ids))

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the logits (..., vocab_size) for a residual stream x (..., d_model). Applies the final norm and the output
        layer.

        After the last block, these are the logits of ``forward``. After an earlier block, they show what the model would
        predict if it stopped there: the logit lens (nostalgebraist 2020).
        """
        return linear(self.norm(x), self.output_weight())

    @checked
    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy loss for ``targets`` (batch, length), the token after each of ``ids``. Logits are computed
        in chunks to save memory."""
        return linear_cross_entropy(self.norm(self._residual_stream(ids)), self.output_weight(), targets, reduction=reduction)

    def output_weight(self) -> Tensor:
        """Return the output layer's weight (vocab_size, d_model). It may be tied to the token embedding."""
        return self.token_embedding.weight if self.output is None else self.output.weight

    def _residual_stream(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the output of the last block: (batch, length, d_model)."""
        start = cache.length if cache is not None else 0
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= self.config.block_size - start:
            limit = self.config.block_size - start
            after = f" after {counted(start, 'token')} in the cache" if start else ""
            raise ValueError(f"ids must be (batch, length) with length 1 to {limit}{after}, got {ids.shape}: crop them")
        mask = self.window_mask(start + ids.shape[1])
        if mask is not None and cache is not None:
            window = counted(self.config.sliding_window, "token")
            raise ValueError(f"a cache holds at most the sliding_window of {window}: read longer texts without a cache")
        x = self.token_embedding(ids)  # (batch, length, d_model)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        x = self.dropout(add_positions(show(self, "embedded", x), self.position_embedding, cache))
        for i, block in enumerate(self.blocks):
            x = block(x, mask=mask, is_causal=True, cache=cache.blocks[i] if cache is not None else None)
        return x

    def window_mask(self, length: int) -> Tensor | None:
        """Return the mask (length, length) of the sliding window, or None if the window covers the sequence."""
        if not 0 < self.config.sliding_window < length:
            return None
        positions = tt.arange(length)
        return positions > positions[:, None] - self.config.sliding_window

    def new_cache(self, max_tokens: int | None = None) -> Cache:
        """Return an empty cache for block_size tokens, or fewer if limited by ``max_tokens`` or the sliding window. Raises
        SettingError if it does not fit in memory."""
        capacity = int(self.config.block_size if max_tokens is None else min(max_tokens, self.config.block_size))
        capacity = min(capacity, int(self.config.sliding_window) or capacity)
        key_value_heads, d_head = self.config.block.head_sizes
        numbers = 2 * int(self.config.num_layers) * capacity * key_value_heads * d_head
        check_cache_fits(numbers, self.token_embedding.weight.dtype, "block_size" if max_tokens is None else "length")
        return Cache(self.config.num_layers, capacity)

    def adapted(self, config: GPTConfig) -> GPT:
        """Return a model with the same weights but a new dropout or a smaller block_size. Learned positions beyond it are
        dropped. Raises SettingError if another setting differs."""
        if config.block_size > self.config.block_size:
            raise SettingError(f"block_size must be at most {self.config.block_size}, as in these weights")
        for name in changed_settings(GPTConfig, vars(config), self.config):
            if name not in ("block_size", "dropout"):
                raise SettingError(f"{name} is {getattr(self.config, name)!r} in these weights: leave it out")
        with init.skipped():
            model = GPT(config)
        state = self.state_dict()
        if "position_embedding.weight" in state:
            state["position_embedding.weight"] = tt.copy(state["position_embedding.weight"][: config.block_size])
        for name, weight in quantized_weights(self):
            put_weight(model, name, weight)
        model.load_state_dict(state, assign=True)
        return model.train(self.training)


class GPTVectors(Module):
    """A GPT without the output layer. Each token's vector depends on the token and the tokens before it."""

    def __init__(self, config: GPTConfig):
        self.config = replace(config, tie_output=True)
        self.gpt = GPT(self.config)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids (batch, length) to vectors (batch, length, d_model)."""
        return self.gpt.vectors(ids)
