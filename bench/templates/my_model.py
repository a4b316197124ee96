# my_model.py
import torch
from torch import nn


def my_model(width: int = 64, seq_len: int = 32):  # each parameter can be an axis of a matrix
    layer = nn.TransformerEncoderLayer(width, nhead=4, dropout=0.0, batch_first=True)
    x = torch.randn(256, seq_len, width)
    samples = torch.utils.data.TensorDataset(x, x.flip(1))  # an input and its target
    return nn.TransformerEncoder(layer, num_layers=2), samples, nn.MSELoss()
