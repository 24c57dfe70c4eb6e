"""Compares the history with what is there in the end: in SQL, and in the server."""
