"""tinytensor: tensors with reverse-mode automatic differentiation on NumPy or CuPy.

Read the source in this order: engine, ops, tensor, functional, fused.
"""

from tinytensor import functional, nn, optim, parallel, random
from tinytensor.backend import BackendError
from tinytensor.backend import name as backend_name
from tinytensor.checkpoint import checkpoint
from tinytensor.creation import arange, eye, full, full_like, linspace, ones, ones_like, tensor, zeros, zeros_like
from tinytensor.modes import detect_anomaly, enable_grad, full_precision, no_grad
from tinytensor.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    causal_mask,
    cross_entropy,
    dropout,
    gelu,
    huber_loss,
    kl_div,
    l1_loss,
    layer_norm,
    linear_cross_entropy,
    mse_loss,
    multi_head_attention,
    nll_loss,
    rms_norm,
    scaled_dot_product_attention,
    smooth_l1_loss,
)
from tinytensor.gradcheck import GradcheckError, gradcheck
from tinytensor.graph import draw_graph
from tinytensor.io import FileError, load, save
from tinytensor.ops import *
from tinytensor.random import seed
from tinytensor.tensor import Tensor, grad
from tinytensor.trace import opaque, trace

__version__ = "0.1.0"
