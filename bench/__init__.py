"""Benchmarks: `python -m bench [locks] [--quick] [--only NAME] [--rounds N] [--out DIR]`."""
