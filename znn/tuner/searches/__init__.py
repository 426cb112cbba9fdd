"""Searches for schedules, all in the same space, with the same measuring."""
from znn.tuner.searches.run import Budget, best_so_far, run
from znn.tuner.searches.strategies import SEARCHES

__all__ = ["SEARCHES", "Budget", "best_so_far", "run"]
