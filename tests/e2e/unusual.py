"""Small models with what only some backends train."""

import torch
from torch import nn

WIDTH, WORDS = 16, 32


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Filter(nn.Module):
    """Multiplies frequencies; complex, as Fourier layers have it."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.polar(torch.ones(WIDTH // 2 + 1), torch.rand(WIDTH // 2 + 1)))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x.float()) * self.weights, n=WIDTH).to(x.dtype)


class Mean(nn.Embedding):
    def forward(self, words):
        return super().forward(words).mean(1)


class Outside(nn.Module):
    """Uses weights of blocks where these do not run."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(nn.Linear(WIDTH, WIDTH)) for _ in "ab")

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + sum(block.inner.weight.square().mean() for block in self.blocks)


class Overflowing(nn.Linear):
    """Every second gradient is infinite."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        out = super().forward(x)
        if self.calls % 2 == 0:
            out.register_hook(lambda gradient: gradient * float("inf"))
        return out


class Derived(Outside):
    """Trains a derivative of what its blocks compute, as a force is of an energy."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = sum(block(x).square().sum() for block in self.blocks)
        return torch.autograd.grad(energy, x, create_graph=True)[0]


class Listed(nn.Sequential):
    """Holds a head where the model does not find its weights."""

    def __init__(self, *blocks):
        super().__init__(*blocks)
        self.heads = [nn.Linear(WIDTH, WIDTH)]

    def forward(self, x):
        return self.heads[0](super().forward(x))


WHOLE = {
    "outside": Outside,
    "derived": Derived,
    "listed": lambda: Listed(*(Block(nn.Linear(WIDTH, WIDTH)) for _ in "ab")),
}
KINDS = {
    "complex": Filter,
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "overflowing": lambda: Overflowing(WIDTH, WIDTH),
    "lazy": lambda: nn.LazyLinear(WIDTH),
    "scripted": lambda: torch.jit.script(nn.Linear(WIDTH, WIDTH)),
}


def unusual(kind: str = "complex"):
    words = torch.randint(WORDS, (16, 4), generator=torch.Generator().manual_seed(0))
    x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))
    if kind in WHOLE:
        model = WHOLE[kind]()
    elif kind == "sparse":
        model = nn.Sequential(Mean(WORDS, WIDTH, sparse=True), *(Block(nn.Linear(WIDTH, WIDTH)) for _ in "ab"))
    else:
        model = nn.Sequential(*(Block(KINDS[kind]()) for _ in "ab"))
    return model, list(zip(words if kind == "sparse" else x, x.flip(1), strict=True)), nn.MSELoss()
