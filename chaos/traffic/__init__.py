"""Who talks to the server: producers that append, workers that absorb. Each is a process of its own."""
