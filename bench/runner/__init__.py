"""The torch side: what runs inside `accelerate launch -m bench.runner`."""
