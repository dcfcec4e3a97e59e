"""What every rank of a training run holds."""

from __future__ import annotations

import math

from tinyformer.training.evaluation import Evaluator
from tinyformer.training.losses import LossFunction
from tinytensor.distributed import Communicator, check_same
from tinytensor.nn import Module
from tinytensor.optim import Optimizer


class Replica(Evaluator):
    """The model, its optimizer and its loss function as one rank has them."""

    def __init__(self, ranks: Communicator, model: Module, optimizer: Optimizer, loss_function: LossFunction, clip: float):
        super().__init__(ranks, model, loss_function)
        self.optimizer = optimizer
        self.clip = clip or math.inf

    def take_weights(self) -> None:
        """Take the weights of rank 0, which have changed there."""
        if not self.ranks.shares_memory:
            self.ranks.broadcast([tensor.data for tensor in self.model.state_dict().values()])

    def check_weights(self) -> None:
        """Raise RankError if the weights of all ranks are not the same any more."""
        if not self.ranks.shares_memory and self.ranks.size > 1:
            remedy = "Its memory or the network may be faulty, or its processor computes something else."
            check_same(self.ranks, "weights", self.model.state_dict(), remedy)
