"""Mult-VAE (Liang et al. 2018): a variational autoencoder of each user's items with a multinomial likelihood.

    x_u ∈ {0, 1}^N,  x̃_u = dropout(x_u/‖x_u‖)
    [μ, log σ²] = tanh(x̃ W1 + b1) W2 + b2,  z = μ + σ ⊙ ε
    π = softmax(tanh(z W3 + b3) W4 + b4)
    L = mean over users of −Σ_t x_ut log π_ut + β_step · KL(N(μ, σ²) ‖ N(0, 1))

β_step rises linearly from 0 to β. To rank, nothing is dropped and z = μ.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedgrec.centralized.contract import Ints, Scorer, Tensors
from fedgrec.centralized.neural import NeuralModel, xavier
from fedgrec.centralized.options import MultVAEOptions
from fedgrec.centralized.sampling import EPOCH_STREAM, INIT_STREAM, generator
from fedgrec.data import Interactions
from fedgrec.models.ranking import rows_of

if TYPE_CHECKING:
    from torch import Generator, Tensor


class MultVAE(NeuralModel):
    """The encoder computes a user's representation from its items: no rows of users are learned."""

    name, Options = "multvae", MultVAEOptions

    def __init__(self, options: MultVAEOptions, train: Interactions, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, train, seed, device)
        self.users = np.flatnonzero(train.user_degrees())  # users without items teach nothing

    def _start(self) -> Tensors:
        rng, N, h, z = generator(self.seed, INIT_STREAM), self.train.n_items, self.options.hidden, self.options.latent
        shapes = {"1": (N, h), "2": (h, 2 * z), "3": (z, h), "4": (h, N)}
        weights: Tensors = {f"W{i}": xavier(rng, shape) for i, shape in shapes.items()}
        biases = {f"b{i}": rng.normal(0, 0.001, shape[1]).astype(np.float32) for i, shape in shapes.items()}
        return weights | biases

    def _batches(self) -> Iterator[tuple[tuple[Ints, float], int]]:
        order = generator(self.seed, EPOCH_STREAM, self.epochs_done).permutation(self.users)
        batches = range(0, len(order), self.options.batch)
        for i, lo in enumerate(batches):
            chosen = order[lo : lo + self.options.batch]
            yield (chosen, self.kl_weight(self.epochs_done * len(batches) + i)), len(chosen)

    def kl_weight(self, step: int) -> float:
        """β_step"""
        return float(self.options.beta * min(1.0, step / self.options.anneal_steps))

    def loss(self, users: Ints, kl_weight: float, noise: "Generator | None" = None) -> "Tensor":
        """L of these users; without noise nothing is dropped and z = μ."""
        import torch

        rows, items, counts = self._pairs(users)
        mu, log_variance = self.encode(items, counts, noise)
        z = mu
        if noise is not None:
            z = mu + torch.exp(log_variance / 2) * torch.randn(mu.shape, generator=noise, device=self.where)
        logits = self.decode(z)  # [n, N]
        # Σ_t x_t log π_t = Σ_t x_t logit_t − |x| log Σ exp: no second table of N columns
        likelihood = logits[rows, items].sum() - counts @ torch.logsumexp(logits, 1)
        kl = (log_variance.exp() + mu.square() - 1 - log_variance).sum() / 2
        return (kl_weight * kl - likelihood) / len(users)

    def encode(self, items: "Tensor", counts: "Tensor", noise: "Generator | None") -> tuple["Tensor", "Tensor"]:
        """(μ, log σ²), [n, z] each, of users whose items follow each other in `items`."""
        import torch
        from torch.nn.functional import embedding_bag

        w, p = self.learner, self.options.dropout
        values = torch.repeat_interleave(counts.rsqrt(), counts.long(), output_size=len(items))  # x/‖x‖
        if noise is not None and p:
            values = values * (torch.rand(len(items), generator=noise, device=self.where) >= p) / (1 - p)
        first = counts.long().cumsum(0) - counts.long()
        hidden = embedding_bag(items, w["W1"], first, mode="sum", per_sample_weights=values)  # x̃ W1
        mu, log_variance = (torch.tanh(hidden + w["b1"]) @ w["W2"] + w["b2"]).chunk(2, dim=1)
        return mu, log_variance

    def decode(self, z: "Tensor") -> "Tensor":
        """log π, plus a constant for each user. [n, N]"""
        import torch

        w = self.learner
        return torch.addmm(w["b4"], torch.tanh(z @ w["W3"] + w["b3"]), w["W4"])

    def _pairs(self, users: Ints) -> tuple["Tensor", "Tensor", "Tensor"]:
        """The users' pairs as (place in `users`, item) one after the other, and how many each has."""
        import torch

        indptr, items = rows_of(self.train, users)
        counts = np.diff(indptr)
        parts = (np.repeat(np.arange(len(users)), counts), items.astype(np.int64), counts.astype(np.float32))
        rows, columns, lengths = (torch.from_numpy(part).to(self.where) for part in parts)
        return rows, columns, lengths

    def scorer(self) -> Scorer:
        import torch

        def score(users: Ints) -> "Tensor":
            with torch.no_grad():
                _, items, counts = self._pairs(users)
                return self.decode(self.encode(items, counts, None)[0])

        return score
