"""Whole networks for inference: a typed representation, traced from torch, rewritten, planned, and run."""
