"""Each thing once: ids seen in a window, claims, stored results of calls, and gates for states."""
