"""Small programs that run another library's part of a benchmark, each in that library's own environment."""
