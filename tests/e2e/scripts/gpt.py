"""A small GPT in one file: its own batches, a compiled option, accumulation over micro-steps, and a scaler."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

batch_size = 12
gradient_accumulation_steps = 5
for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=")
    globals()[name] = int(value)

dist.init_process_group("gloo")
tokens = torch.randint(0, 64, (10_000,))


def get_batch():
    starts = torch.randint(len(tokens) - 33, (batch_size,))
    rows = torch.stack([tokens[start : start + 33] for start in starts])
    return rows[:, :-1], rows[:, 1:]


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        attended = torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        return x + self.out(attended[:, 0])


class Gpt(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = torch.nn.Embedding(64, width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(2)])
        self.head = torch.nn.Linear(width, 64)

    def forward(self, x, targets):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = DDP(Gpt())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
X, Y = get_batch()
while True:
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        _, loss = model(X, Y)
        X, Y = get_batch()
        (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
