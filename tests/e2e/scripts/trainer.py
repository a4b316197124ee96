"""transformers' Trainer with accumulation, on a tiny GPT-2."""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, required=True)
args = parser.parse_args()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        ids = torch.arange(index, index + 16) % 64
        return {"input_ids": ids, "labels": ids}


training = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=args.per_device_train_batch_size,
    gradient_accumulation_steps=4,
    max_steps=10_000,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
config = GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
Trainer(model=GPT2LMHeadModel(config), args=training, train_dataset=Texts()).train()
