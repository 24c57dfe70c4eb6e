"""Locks: mutex, read/write lock, semaphore, many names at once, fences and their guards. All of them are leases."""
