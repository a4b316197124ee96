"""The start-up hook inside a user's script: it measures the script from outside, and the script need not know.

`startup` is on the Python path of the script's processes. Its `sitecustomize` waits until one of them has imported
torch, and then loads this package, under the name `_bench`: a script may have a `bench` of its own. So modules here
import Python, torch and, relatively, modules of bench that do the same. What a rank saw goes to the files that bench's
own ranks write: see bench/store/spool.py.
"""
