"""Transforms between tiles and points, as machine code."""
