"""The embedded demonstration checkpoint."""
