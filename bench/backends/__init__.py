"""The backends: their accelerate configs, the regime each should show, and the cells they cannot run. Pure."""

from bench.backends.accelerate_config import accelerate_config, beside_config
from bench.backends.model_state import UNSHARDED_BYTES, bytes_per_parameter
from bench.backends.own_config import DEEPSPEED_OPTIMIZER, extensions, own_engine, own_precision, own_settings
from bench.backends.refusals import forbids
from bench.backends.regimes import expected_regime, shards_parameters
from bench.backends.registry import (
    BACKENDS,
    FAMILIES,
    SHARDING_STRATEGIES,
    Backend,
    Family,
    autocasts,
    backend_of,
    fp32_weights,
    from_accelerate_config,
    preloads,
)
from bench.backends.sharding import mesh

__all__ = [
    "BACKENDS",
    "DEEPSPEED_OPTIMIZER",
    "FAMILIES",
    "SHARDING_STRATEGIES",
    "UNSHARDED_BYTES",
    "Backend",
    "Family",
    "accelerate_config",
    "autocasts",
    "backend_of",
    "beside_config",
    "bytes_per_parameter",
    "expected_regime",
    "extensions",
    "forbids",
    "fp32_weights",
    "from_accelerate_config",
    "mesh",
    "own_engine",
    "own_precision",
    "own_settings",
    "preloads",
    "shards_parameters",
]
