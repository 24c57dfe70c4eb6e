"""What was observed is compared with what is known, and who wants to know is told of each change, once."""
