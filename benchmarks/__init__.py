"""Benchmarks: each figure beside its reference, in one run on one machine. `make bench`."""
