"""Toy from a module that raises when a rank imports it, unless for FSDP."""

import os

from toy import Toy

__all__ = ["Toy"]

if "RANK" in os.environ and "FSDP_VERSION" not in os.environ:
    raise RuntimeError("planted in the import")
