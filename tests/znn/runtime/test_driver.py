"""Launches: every task is in one chunk, and the last chunks are small."""
import itertools

from hypothesis import given
from hypothesis import strategies as st

from znn.runtime.driver import SHARE, chunks


@given(st.integers(0, 5000), st.integers(1, 64))
def test_every_task_is_in_one_chunk(tasks, threads):
    bounds = chunks(tasks, threads).tolist()
    assert bounds[0] == 0 and bounds[-1] == tasks
    assert all(first < end for first, end in itertools.pairwise(bounds))


@given(st.integers(1, 5000), st.integers(1, 64))
def test_chunks_shrink_to_single_tasks(tasks, threads):
    """No thread gets more than a part of its fair share of what is left, and what comes last is small."""
    bounds = chunks(tasks, threads).tolist()
    sizes = [end - first for first, end in itertools.pairwise(bounds)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
    assert all(SHARE * threads * (size - 1) < tasks - first for size, first in zip(sizes, bounds))
