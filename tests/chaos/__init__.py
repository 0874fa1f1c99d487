"""Fault tests: real workers, producers and servers that are killed, stopped, wiped and cut.

Every scenario ends with the one checker (`checker.py`). A fixed-seed sample of each runs in `make test`; the full
version is marked `chaos` and runs by `make chaos`.
"""
