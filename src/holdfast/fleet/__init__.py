"""The fleet: which processes there are, what they do together, and what operators did."""
