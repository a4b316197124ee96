"""A LightningModule and Lightning's Trainer."""

import argparse

import lightning
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
args = parser.parse_args()


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))

    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(4000 * args.batch, 64))
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=10_000, logger=False, enable_checkpointing=False
)
trainer.fit(Lit(), torch.utils.data.DataLoader(data, batch_size=args.batch))
