"""A user's script without torch: its memory grows with the batch, and a switch makes it go wrong."""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--how", default="works")
parser.add_argument("--out")
given = parser.parse_args()

print(f"it {given.how}", flush=True)
held = bytearray(given.batch * 2**20)
match given.how:
    case "hangs":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    case "is slow":
        for _ in range(5):
            time.sleep(0.5)
            print("a line", flush=True)
    case "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    case "prints an OOM":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    case "raises":
        raise ValueError("no such dataset")
    case "writes none":
        sys.exit()
    case "aborts":
        ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()

figures = {"step": {"mean_ms": 10 + given.batch}, "peak": len(held), "world": 1}
match given.how:
    case "has no key":
        del figures["step"]
    case "writes NaN":
        figures["step"] = {"mean_ms": float("nan")}
    case "ran elsewise":
        figures["world"] = 8
    case "fails late":
        print("gave up", flush=True)
text = json.dumps(figures)
with open(given.out, "w") as file:
    file.write(text[:20] if given.how == "writes torn" else text)
if given.how == "fails late":
    sys.exit(3)
if given.how == "aborts at exit":
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()  # as a thread that has to leave makes it do
