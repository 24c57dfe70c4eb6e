"""Runs: executed once in the fleet, stopped from anywhere, read by anybody who comes back."""
