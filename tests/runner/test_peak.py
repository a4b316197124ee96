"""The allocator's history on CUDA, as torch writes it, without a device."""

from bench.records.peak import Move
from bench.runner.peak import moves_of


def test_a_history_of_the_cuda_allocator_tells_what_tensors_take_and_give_back() -> None:
    history = [
        {"action": "segment_alloc", "addr": 4096, "size": 2**21, "stream": 0, "time_us": 1},
        {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 2, "frames": []},
        {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 3, "frames": []},
        {"action": "free_completed", "addr": 4096, "size": 512, "stream": 0, "time_us": 4, "frames": []},
    ]
    assert list(moves_of(history)) == [Move(2000, 4096, 512), Move(4000, 4096, -512)]
