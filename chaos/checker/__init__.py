"""Compares the history with what is in SQL."""
