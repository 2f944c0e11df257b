"""Seeded generator of training conversations: hand-written templates and word lists, and WordNet's words."""
