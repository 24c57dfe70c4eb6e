"""What was promised, and what each process saw, written down as it happens."""
