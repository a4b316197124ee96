"""Measure how to train: backends, batches and switches compared on the hardware at hand."""

__version__ = "0.1.0"
