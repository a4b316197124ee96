"""The synthetic datasets of the mixture, and the statistics to normalize their values. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from bench.model.config import Pi07Config

STATE_STD = 0.5
"""Standard deviation of a robot's state before its source scales and shifts it."""
ACTION_STD = sqrt(0.5)
"""Standard deviation of an action, a sine, before its source scales and shifts it."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of one feature over all its values."""

    mean: float
    std: float
    count: int | None = None
    """Number of values; older datasets do not give it."""


@dataclass(frozen=True)
class Source:
    """A dataset of the mixture: one kind of robot, in its own units."""

    weight: float
    """Share of the samples."""
    scale: float
    shift: float
    missing_cams: int
    """Number of the policy's cameras that it lacks. It has at least one."""
    count: int | None

    def cams(self, config: Pi07Config) -> int:
        """Number of cameras that it has."""
        return max(1, (config.dataset_num_cams or config.num_cams) - self.missing_cams)

    def statistics(self, config: Pi07Config) -> dict[str, Statistics]:
        """Statistics by feature: ``state``, ``actions``, ``camera0``, ``camera1``, ... (cameras in bytes)."""
        cameras = (f"camera{index}" for index in range(self.cams(config)))
        return {
            "state": Statistics(self.shift, self.scale * STATE_STD, self.count),
            "actions": Statistics(self.shift, self.scale * ACTION_STD, self.count),
            **{camera: Statistics(127.5, 127.5, self.count) for camera in cameras},
        }


SOURCES = (
    Source(weight=0.75, scale=1.0, shift=0.0, missing_cams=0, count=600_000),
    Source(weight=0.25, scale=2.0, shift=0.25, missing_cams=1, count=None),
)


def statistics(config: Pi07Config) -> dict[str, Statistics]:
    """Statistics of the whole mixture, with an entry for each of the policy's cameras."""
    of_sources = [source.statistics(config) for source in SOURCES]
    features = dict.fromkeys(feature for source in of_sources for feature in source)
    merged = {feature: _merge(feature, of_sources) for feature in features}
    return pad_to_cameras(merged, config.num_cams)


def pad_to_cameras(by_feature: Mapping[str, Statistics], cams: int) -> dict[str, Statistics]:
    """A camera that no dataset has gets the statistics of the first camera, with or without a count."""
    return {**{f"camera{index}": by_feature["camera0"] for index in range(cams)}, **by_feature}


def _merge(feature: str, of_sources: Sequence[Mapping[str, Statistics]]) -> Statistics:
    """Statistics pooled by the sources' shares of the samples. The count is known if every source gives one."""
    parts = [
        (source.weight, features[feature])
        for source, features in zip(SOURCES, of_sources, strict=True)
        if feature in features
    ]
    whole = sum(weight for weight, _ in parts)
    mean = sum(weight * part.mean for weight, part in parts) / whole
    square = sum(weight * (part.std**2 + part.mean**2) for weight, part in parts) / whole
    counts = [part.count for _, part in parts if part.count is not None]
    return Statistics(mean, sqrt(square - mean**2), sum(counts) if len(counts) == len(parts) else None)
