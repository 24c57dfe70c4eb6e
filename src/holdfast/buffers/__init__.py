"""Bounded buffers of messages, one for each user, and the workers that absorb them."""
