"""Holdfast behind the interfaces of other frameworks. Each adapter needs the extra of its name."""
