"""RQ-VAE: residual quantisation of a learned latent space, as TIGER uses it for semantic ids; and VQ-VAE, without
residuals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from callslip.errors import BadSetting, TrainingFailed
from callslip.identifiers.kmeans import check_vectors, cluster_centres
from callslip.runtime.device import seeded
from callslip.runtime.progress import track


def rqvae_loss(
    x: torch.Tensor, output: torch.Tensor, residuals: torch.Tensor, chosen: torch.Tensor, beta: float = 0.25
) -> dict[str, torch.Tensor]:
    """Reconstruction, codebook and commitment terms: squared errors, summed over dimensions and levels, batch
    mean.

    `residuals` and `chosen` are [B, L, H]: the residual that each level codes, and the codebook vector it chooses.
    """
    return {
        "reconstruction": (x - output).pow(2).sum(dim=1).mean(),
        "codebook": (residuals.detach() - chosen).pow(2).sum(dim=(1, 2)).mean(),
        "commitment": beta * (residuals - chosen.detach()).pow(2).sum(dim=(1, 2)).mean(),
    }


class RQVAE(nn.Module):
    """An encoder MLP, `length` codebooks of `width` vectors on residuals, and a decoder MLP.

    Codebooks are initialised by k-means on the residuals of all vectors; gradients pass the quantiser by the
    straight-through estimator; tokens unused in an epoch restart at random residuals, except in the last fifth of
    training.
    """

    def __init__(
        self,
        length: int = 3,
        width: int = 256,
        dim: int = 384,
        *,
        latent: int = 32,
        hidden: tuple[int, ...] = (256, 128),
        beta: float = 0.25,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(length, width, dim, latent, *hidden) < 1:
            raise BadSetting(f"invalid RQ-VAE: length {length}, width {width}, dimensions {dim}, {hidden}, {latent}")
        self.length, self.width, self.dim, self.latent = length, width, dim, latent
        self.hidden, self.beta, self.seed = tuple(hidden), beta, seed
        with seeded(seed):
            self.encoder = _mlp(dim, *hidden, self.code_dim)
            self.decoder = _mlp(self.code_dim, *reversed(hidden), dim)
            self.codebooks = nn.Parameter(torch.randn(length, width, latent))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        self.mean: torch.Tensor
        self.scale: torch.Tensor

    @property
    def code_dim(self) -> int:
        """Dimensions of what the encoder gives and the decoder reads."""
        return self.latent

    def joined(self, chosen: torch.Tensor) -> torch.Tensor:
        """The quantised latent [B, code_dim] of the chosen codebook vectors [B, L, H]."""
        return chosen.sum(dim=1)

    def quantise(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens [B, L], and the residuals and chosen codebook vectors [B, L, H]."""
        tokens, residuals, chosen = [], [], []
        residual = latent
        for book in self.codebooks:
            token = torch.cdist(residual, book).argmin(dim=1)
            tokens.append(token)
            residuals.append(residual)
            chosen.append(book[token])
            residual = residual - book[token].detach()
        return torch.stack(tokens, 1), torch.stack(residuals, 1), torch.stack(chosen, 1)

    def forward(self, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Loss terms and tokens of a batch of standardised vectors."""
        latent = self.encoder(x)
        tokens, residuals, chosen = self.quantise(latent)
        quantised = self.joined(chosen)
        output = self.decoder(latent + (quantised - latent).detach())  # straight-through estimator
        return rqvae_loss(x, output, residuals, chosen, self.beta), tokens

    def fit(
        self,
        vectors: np.ndarray,
        *,
        epochs: int = 50,
        batch_size: int = 1024,
        learning_rate: float = 1e-3,
        device: str | torch.device | None = None,
    ) -> np.ndarray:
        """Train on the vectors and return their codes, int32 [N, length]."""
        vectors = check_vectors(vectors, self.dim)
        if not len(vectors):
            raise BadSetting("no vectors to quantise")
        self.to(_device(device))
        x = torch.from_numpy(vectors)
        self.mean.copy_(x.mean(dim=0))
        self.scale.copy_((x - x.mean(dim=0)).std().clamp_min(1e-6) if len(x) > 1 else torch.ones(()))
        self._start_codebooks(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        optimiser = torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=1e-4)
        self.train()
        for epoch in track(range(epochs), "RQ-VAE"):
            used = torch.zeros(self.length, self.width)
            for rows in torch.randperm(len(x), generator=rng).split(batch_size):
                terms, tokens = self(self._standardise(x[rows]))
                loss = torch.stack(list(terms.values())).sum()
                if not torch.isfinite(loss):
                    raise TrainingFailed(f"RQ-VAE: the loss is {loss.item()}", "Lower the learning rate.")
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                optimiser.step()
                used += F.one_hot(tokens.cpu(), self.width).sum(dim=0)
            if epoch < 0.8 * epochs:
                self._restart_dead(x, used == 0, rng)
        self.eval()
        return self.assign(vectors)

    def _standardise(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(self.mean.device) - self.mean) / self.scale

    @torch.no_grad()
    def _latents(self, x: torch.Tensor, batch_size: int = 8192) -> torch.Tensor:
        return torch.cat([self.encoder(self._standardise(part)) for part in x.split(batch_size)])

    @torch.no_grad()
    def _start_codebooks(self, vectors: np.ndarray) -> None:
        latent = self._latents(torch.from_numpy(vectors))
        for level in range(self.length):
            points = self.quantise(latent)[1][:, level]  # what the level codes, given the levels before it
            centres = torch.from_numpy(cluster_centres(points.cpu().numpy(), self.width, self.seed + level))
            self.codebooks[level, : len(centres)] = centres.to(points.device)

    @torch.no_grad()
    def _restart_dead(self, x: torch.Tensor, dead: torch.Tensor, rng: torch.Generator) -> None:
        if not dead.any():
            return
        some = x[torch.randperm(len(x), generator=rng)[:8192]]
        _, residuals, _ = self.quantise(self._latents(some))
        for level in range(self.length):
            tokens = dead[level].nonzero().flatten()
            picks = torch.randint(len(some), (len(tokens),), generator=rng)
            self.codebooks[level, tokens.to(residuals.device)] = residuals[picks.to(residuals.device), level]

    @torch.no_grad()
    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of vectors, int32 [N, length]."""
        x = torch.from_numpy(check_vectors(vectors, self.dim))
        parts = [self.quantise(self._latents(part))[0] for part in x.split(8192)]
        return torch.cat(parts).cpu().numpy().astype(np.int32)

    def state(self) -> dict[str, np.ndarray]:
        """Weights and settings, as arrays."""
        settings = np.asarray([self.length, self.width, self.dim, self.latent, self.seed, *self.hidden], np.int64)
        weights = {f"weights.{name}": value.cpu().numpy().copy() for name, value in self.state_dict().items()}
        return {"settings": settings, "beta": np.asarray([self.beta]), **weights}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> RQVAE:
        length, width, dim, latent, seed, *hidden = (int(value) for value in state["settings"])
        beta = float(state["beta"][0])
        maker = cls(length, width, dim, latent=latent, hidden=tuple(hidden), beta=beta, seed=seed)
        prefix = "weights."
        weights: dict[str, Any] = {
            name.removeprefix(prefix): torch.from_numpy(np.array(value))
            for name, value in state.items()
            if name.startswith(prefix)
        }
        maker.load_state_dict(weights)
        return maker.eval()


class VQVAE(RQVAE):
    """VQ-VAE: the encoder gives `length` latent vectors, each quantised by a codebook of its own; no residuals."""

    @property
    def code_dim(self) -> int:
        return self.length * self.latent

    def joined(self, chosen: torch.Tensor) -> torch.Tensor:
        return chosen.flatten(1)

    def quantise(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = latent.unflatten(1, (self.length, self.latent))
        tokens = torch.stack([torch.cdist(parts[:, n], book).argmin(dim=1) for n, book in enumerate(self.codebooks)], 1)
        chosen = torch.stack([book[tokens[:, n]] for n, book in enumerate(self.codebooks)], 1)
        return tokens, parts, chosen


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no activation after the last


def _device(device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
