"""Short-term memory: the newest entries of each conversation, bounded, in order, with an end."""
