"""Reading ahead and writing behind: at the same time as the work, in order, and nothing that fails is lost."""
import threading

import pytest

from znn.pipeline.helpers import Helpers

WAIT = 60


def test_the_next_is_read_while_this_one_is_worked_on():
    began = [threading.Event() for _ in range(4)]

    def read(i):
        began[i].set()
        return 10 * i

    with Helpers() as helpers:
        for i, found in helpers.ahead(read, range(3)):
            assert found == 10 * i and began[min(i + 1, 2)].wait(WAIT)


def test_nothing_to_read_is_no_work():
    with Helpers() as helpers:
        assert list(helpers.ahead(None, [])) == []


def test_work_goes_on_while_one_is_written_and_the_order_is_kept():
    go, written = threading.Event(), []

    def write(i):
        assert go.wait(WAIT)
        written.append(i)

    with Helpers() as helpers:
        helpers.behind(write, 1)
        assert not written
        go.set()
        helpers.behind(write, 2)
        assert written[0] == 1
    assert written == [1, 2]


def test_what_cannot_be_read_is_raised_when_its_turn_comes():
    def read(i):
        return 1 // (2 - i)

    seen = []
    with pytest.raises(ZeroDivisionError), Helpers() as helpers:
        for i, _ in helpers.ahead(read, range(5)):
            seen.append(i)
    assert seen == [0, 1]


@pytest.mark.parametrize("more", [0, 1])
def test_what_cannot_be_written_is_raised_at_the_next_or_at_the_end(more):
    with pytest.raises(ZeroDivisionError), Helpers() as helpers:
        helpers.behind(lambda: 1 // 0)
        for _ in range(more):
            helpers.behind(pytest.fail, "written after a failure")


def test_an_exception_waits_for_what_is_being_written():
    go, written = threading.Event(), []
    with pytest.raises(KeyError), Helpers() as helpers:
        helpers.behind(lambda: (go.wait(WAIT), written.append(1)))
        threading.Timer(0.05, go.set).start()
        raise KeyError
    assert written == [1]
