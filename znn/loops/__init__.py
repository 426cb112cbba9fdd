"""The loop-nest language: what is summed (`Contraction`), in which order (`Schedule`), and moves between schedules."""
from znn.loops.contraction import Access, Contraction, Dim, Guard
from znn.loops.convolution import (
    conv_backward_data,
    conv_backward_weights,
    conv_forward,
    matmul,
    points_forward,
    points_weights,
)
from znn.loops.interpreter import interpret
from znn.loops.schedule import IllegalSchedule, Loop, Schedule

__all__ = ["Access", "Contraction", "Dim", "Guard", "IllegalSchedule", "Loop", "Schedule", "conv_backward_data",
           "conv_backward_weights", "conv_forward", "interpret", "matmul", "points_forward", "points_weights"]
