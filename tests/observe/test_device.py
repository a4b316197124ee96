"""Peaks of a script's memory, without what observing it takes."""

from collections import Counter

import pytest

from bench.observe import device

SIZE = 2**28


def test_what_observing_adds_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_ADDED", Counter())
    cpu = device.Cpu()
    cpu.reset_peaks()
    before = cpu.peaks()
    with device.added("RssAnon", "RssFile", "VmData"):
        held = [b"1" * SIZE]
    after = cpu.peaks()
    held += [b"1" * SIZE]
    grown = cpu.peaks()
    for name in ("peak_rss_bytes", "peak_allocated_bytes"):
        one, two, three = (peaks[name] or 0 for peaks in (before, after, grown))
        assert two - one < SIZE / 4
        assert three - two > 3 * SIZE / 4
