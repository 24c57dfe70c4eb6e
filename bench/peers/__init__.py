"""Contestants in other languages, or in environments of their own, set up from their registries' packages."""

from .build import Built, go_peer, java_peer
from .environments import Environment, environment

__all__ = ["Built", "Environment", "environment", "go_peer", "java_peer"]
