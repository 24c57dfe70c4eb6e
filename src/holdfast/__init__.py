"""Holdfast: a fleet of workers on one Valkey or Redis that behaves like one careful worker."""

__version__ = "0.1.0"
