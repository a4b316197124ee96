"""The product: cells -> attempts -> outcomes -> store. Start with `sweep.py`."""
