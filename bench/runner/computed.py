"""What one step really computes and communicates: dtypes of its matrix products and of its reductions.

What modules hold says little: `fully_shard` without a ``param_dtype`` computes in fp32, and a hook may reduce in
another dtype than the gradients have. One warm-up step is watched, from its forward to its end.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.observe import flight
from bench.observe.products import Computed, Products
from bench.runner.forward import Batch
from bench.runner.steps import Batches


@contextmanager
def watching(batches: Batches, *, products: bool = True) -> Iterator[tuple[Batches, Computed]]:
    """``batches`` for a step that is watched, once its first batch is there: a loader's workers would inherit the mode
    when they are forked.

    Args:
        products: watch matrix products, too. Compiled code would run uncompiled meanwhile.
    """
    computed = Computed()
    with ExitStack() as stack:

        def watched() -> Iterator[Batch]:
            first = next(batches)
            stack.callback(lambda since: computed.reduced.update(flight.reductions(since)), flight.newest_id())
            if products:
                stack.enter_context(Products(computed))
            yield first
            yield from batches

        yield watched(), computed
