"""Contestants in other languages, built from their registries' packages at first use."""

from .build import Built, go_peer, java_peer

__all__ = ["Built", "go_peer", "java_peer"]
