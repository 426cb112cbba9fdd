"""Searches for schedules, all in the same space, with the same measuring."""
from functools import partial

from znn.tuner.agent.policy import policy
from znn.tuner.searches import strategies
from znn.tuner.searches.bayesian import bayesian
from znn.tuner.searches.ranked import annealing_xgboost
from znn.tuner.searches.recipe import constant
from znn.tuner.searches.run import Budget, best_so_far, run

SEARCHES = {
    "default": strategies.default,
    "recipe": constant,
    "random": strategies.random,
    "greedy 1": partial(strategies.greedy, depth=1),
    "greedy 2": partial(strategies.greedy, depth=2),
    "beam 2": partial(strategies.beam, width=2),
    "beam 4": partial(strategies.beam, width=4),
    "annealing": strategies.annealing,
    "annealing xgboost": partial(annealing_xgboost, plan_size=64),
    "annealing xgboost 16": partial(annealing_xgboost, plan_size=16),
    "bayesian": bayesian,
    "policy": policy,
    "exhaustive": strategies.exhaustive,
}

__all__ = ["SEARCHES", "Budget", "best_so_far", "run"]
