"""TRL's supervised fine-tuning of a tiny model from a config, on texts of its own."""

import argparse
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, required=True)
args = parser.parse_args()

words = ["<pad>", "<unk>", *(f"w{number}" for number in range(60))]
tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>")
texts = Dataset.from_dict({"text": [" ".join(f"w{(row + at) % 60}" for at in range(12)) for row in range(2000)]})
config = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=args.per_device_train_batch_size,
    max_steps=10_000,
    max_length=16,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=len(words), n_positions=32))
SFTTrainer(model=model, args=config, train_dataset=texts, processing_class=fast).train()
