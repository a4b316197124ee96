"""One explained step, and the way from one step to another: bars that sum to the measured difference. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.explain.divide import Division, pacing
from bench.explain.parts import Part
from bench.records.peak import AtPeak

OVERHEAD = "profiling overhead"
LAUNCH = "other launch"
"""What the same steps differ by without a profiler: measured, and in the profiled attempt."""
MOST_TOLD = 6
"""Parts in the sentence. With fewer, those that it leaves out may sum to more than those that it names."""
NOISE = 2.0
"""Standard errors within which a part counts as equal."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Profiled steps, and what is known of the same step without a profiler. Times are seconds."""

    name: str
    divisions: Sequence[Division]
    measured_s: float | None = None
    """The step as the run measured it; None for traces of others."""
    unprofiled_s: float | None = None
    """The step in the profiled attempt, before profiling; None for traces of others."""
    critical: int | None = None
    """The critical rank of the measured steps; None where the report names none."""
    memory: AtPeak | None = None
    """Of the rank with the highest peak; None for traces of others."""
    planned: Mapping[str, float] = field(default_factory=dict)
    """Bytes at the peak by part, as a plan has them."""

    @property
    def pace(self) -> Division:
        """The rank whose parts are shown."""
        return pacing(self.divisions, self.critical)

    @property
    def profiled_s(self) -> float:
        return self.pace.step / 1e9

    @property
    def step_s(self) -> float:
        """What the bars sum to: the measured step where there is one."""
        return self.profiled_s if self.measured_s is None else self.measured_s

    @property
    def parts_s(self) -> dict[Part, float]:
        return {part: took / 1e9 for part, took in self.pace.parts.items()}

    @property
    def corrections_s(self) -> dict[str, float]:
        """From the profiled step to the measured one."""
        if self.measured_s is None or self.unprofiled_s is None:
            return {}
        return {OVERHEAD: self.unprofiled_s - self.profiled_s, LAUNCH: self.measured_s - self.unprofiled_s}

    @property
    def overhead(self) -> float | None:
        """Share by which the profiler lengthens the step."""
        return None if self.unprofiled_s is None else self.profiled_s / self.unprofiled_s - 1

    def error_s(self, part: Part) -> float:
        """Standard error of a part's mean over the steps; 0 where steps are not told apart."""
        each = [took / 1e9 for took in self.pace.by_step(part)]
        return statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0


@dataclass(frozen=True)
class Bar:
    """A part's share of a difference. Seconds."""

    name: str
    before_s: float
    after_s: float
    noise: bool = False
    """Whether the difference is within the scatter between steps."""

    @property
    def difference_s(self) -> float:
        return self.after_s - self.before_s


class Judged(NamedTuple):
    """How sure it is that one step is longer than the other, as a report says it of their throughputs."""

    interval: tuple[float, float]
    """Of how many times one takes the other, for as many samples: what the word rests on."""
    word: str = ""
    """Empty where one of them is faster for sure."""
    samples: float = 1.0
    """How many times the samples of one step are those of the other."""


@dataclass(frozen=True)
class Waterfall:
    """The way from one step to another."""

    before: Explained
    after: Explained
    bars: tuple[Bar, ...]
    """The largest first. Their differences sum to that of the steps."""
    judged: Judged | None = None
    """None for traces of others."""

    @property
    def difference_s(self) -> float:
        return self.after.step_s - self.before.step_s

    @property
    def sentence(self) -> str:
        """``fsdp2 is 1.39× slower than ddp (1.30 to 1.48): 61 % is exposed all-gather in backward, 17 % within noise.``

        Without the parts where `doubt` says that they do not explain the difference. Steps of unequal numbers of
        samples are compared for as many samples, and their parts as they are.
        """
        whole, names = self.difference_s, (self.after.name, self.before.name)
        samples = 1.0 if self.judged is None else self.judged.samples
        parts = [bar for bar in self.bars if bar.name not in (OVERHEAD, LAUNCH)]
        told = [bar for bar in parts if not bar.noise and bar.difference_s * whole > 0.05 * whole**2][:MOST_TOLD]
        longer = self.after.step_s / self.before.step_s
        takes = f"{names[0]} takes {longer:.2f}× the step of {names[1]}"
        if not told and samples == 1:
            return f"{takes}{self._sure()}: no part differs by more than noise."
        ratio = longer / samples
        how = f"{ratio:.2f}× slower" if ratio >= 1 else f"{1 / ratio:.2f}× faster"
        sure = self._sure(inverse=ratio < 1)
        said = f"{names[0]} is {how} than {names[1]}{sure}"
        if samples != 1:
            said = f"{takes} for {samples:.3g}× the samples: for as many samples, it is {how}{sure}"
        if self.doubt or not told:
            return f"{said}."
        noise_s = sum(bar.difference_s for bar in parts if bar.noise)
        rest_s = sum(bar.difference_s for bar in parts) - noise_s
        others = {"within noise": noise_s, "other parts": rest_s - sum(bar.difference_s for bar in told)}
        of_measuring = {bar.name: bar.difference_s for bar in self.bars if bar.name in (OVERHEAD, LAUNCH)}
        shares = [f"{bar.difference_s / whole * 100:.0f} % is {bar.name}" for bar in told]
        shares += _shares(others, whole)
        said += ": " if samples == 1 else ". Of the difference between the steps, "
        said += f"{', '.join(shares)}."
        measuring = _shares(of_measuring, whole)
        return f"{said} Of measuring, not of the steps: {', '.join(measuring)}." if measuring else said

    def _sure(self, *, inverse: bool = False) -> str:
        """`` (1.30 to 1.48, too close to call)``, of the ratio that the sentence says."""
        if self.judged is None:
            return ""
        low, high = self.judged.interval
        if inverse:
            low, high = 1 / high, 1 / low
        word = f", {self.judged.word}" if self.judged.word else ""
        return f" ({low:.2f} to {high:.2f}{word})"

    @property
    def doubt(self) -> str | None:
        """Why the bars may not explain the difference; None if they do."""
        corrections = sum(abs(bar.difference_s) for bar in self.bars if bar.name in (OVERHEAD, LAUNCH))
        if corrections <= abs(self.difference_s) / 2:
            return None
        return (
            "The bars do not explain it: the profiler and the launch change the difference by"
            f" {corrections * 1e3:.2f} ms, and it is {abs(self.difference_s) * 1e3:.2f} ms. Profile again with"
            " --again and more --steps, with nothing else running, or explain a larger batch."
        )


def _shares(differences_s: Mapping[str, float], whole_s: float) -> list[str]:
    """``17 % within noise``, without those that round to nothing."""
    shares = {name: took / whole_s for name, took in differences_s.items()}
    return [f"{share * 100:.0f} % {name}" for name, share in shares.items() if abs(share) >= 0.005]


def waterfall(before: Explained, after: Explained, judged: Judged | None = None) -> Waterfall:
    """The difference of each part, of the profiler's overhead, and between launches."""
    earlier, later = before.parts_s, after.parts_s
    bars = [_bar(part, before, after) for part in dict.fromkeys([*earlier, *later])]
    bars += _corrections(before.corrections_s, after.corrections_s)
    merged = dict[str, Bar]()
    for bar in bars:  # parts of one name, such as those of phases that a name leaves out
        same = merged.get(bar.name)
        merged[bar.name] = (
            bar
            if same is None
            else Bar(bar.name, same.before_s + bar.before_s, same.after_s + bar.after_s, noise=same.noise and bar.noise)
        )
    return Waterfall(before, after, tuple(sorted(merged.values(), key=lambda bar: -abs(bar.difference_s))), judged)


def _bar(part: Part, before: Explained, after: Explained) -> Bar:
    bar = Bar(part.name, before.parts_s.get(part, 0.0), after.parts_s.get(part, 0.0))
    error_s = math.hypot(before.error_s(part), after.error_s(part))
    return Bar(bar.name, bar.before_s, bar.after_s, noise=abs(bar.difference_s) < NOISE * error_s)


def _corrections(before: Mapping[str, float], after: Mapping[str, float]) -> list[Bar]:
    return [
        Bar(name, before.get(name, 0.0), after.get(name, 0.0), noise=name == LAUNCH)
        for name in dict.fromkeys([*before, *after])
    ]
