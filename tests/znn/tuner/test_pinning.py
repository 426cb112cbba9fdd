import os
import threading

import numba
import pytest

from znn.tuner import pinning
from znn.tuner.peak import peak
from znn.tuner.pinning import pinned

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform does not pin threads")


def allowed():
    return {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir(pinning.TASKS)}


@linux
def test_computing_threads_stay_on_processors_of_their_own_and_are_free_again():
    threads = numba.get_num_threads()
    run, _ = peak(threads, steps=20_000)
    run()
    before = allowed()
    with pytest.raises(ZeroDivisionError), pinned(run, threads) as places:
        within = allowed()
        assert len(places) in (0, threads), "all, or none where two were met on one processor"
        for thread, processor in places.items():
            assert within[thread] == {processor} and processor in before[thread]
        assert all(within[thread] == before[thread] for thread in before if thread not in places)
        raise ZeroDivisionError
    assert allowed() == before


@linux
def test_only_the_thread_that_computes_is_pinned():
    done = threading.Event()
    idle = threading.Thread(target=done.wait)
    idle.start()
    before = os.sched_getaffinity(idle.native_id)
    try:
        with pinned(lambda: sum(range(200_000)), 1) as places:
            assert set(places) == {threading.get_native_id()}
            assert os.sched_getaffinity(0) == set(places.values())
            assert os.sched_getaffinity(idle.native_id) == before
    finally:
        done.set()
        idle.join()


def test_where_threads_cannot_be_pinned_nothing_happens(monkeypatch, tmp_path):
    monkeypatch.setattr(pinning, "TASKS", tmp_path / "nowhere")
    with pinned(lambda: None, 2) as places:
        assert places == {}
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pinned(lambda: None, 2) as places:
        assert places == {}
