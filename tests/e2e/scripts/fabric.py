"""Lightning Fabric in a plain loop."""

import argparse

import torch
from lightning.fabric import Fabric

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
args = parser.parse_args()

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
data = torch.utils.data.TensorDataset(torch.randn(4000 * args.batch, 64))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=args.batch))
for (x,) in loader:
    fabric.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
