"""What was promised to the producers, written down as it happens."""
