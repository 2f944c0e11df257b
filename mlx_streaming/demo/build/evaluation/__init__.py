"""Measures a checkpoint through stock mlx-lm, greedily: task accuracy and MTP acceptance."""
