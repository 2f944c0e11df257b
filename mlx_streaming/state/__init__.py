"""Model state: capture and restore, prefix store in memory and on disk."""
