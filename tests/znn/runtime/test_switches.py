"""Variables of the environment: every word for on and off, and what is neither."""
import pytest

from znn.runtime import cache, conv, database, switches

OFF = ["0", "off", "OFF", "no", "False", " false "]
ON = [None, "", "1", "on", "Yes", "true"]


def put(monkeypatch, name, text):
    monkeypatch.delenv(name, raising=False)
    if text is not None:
        monkeypatch.setenv(name, text)


@pytest.mark.parametrize("text, expected", [(t, False) for t in OFF] + [(t, True) for t in ON])
def test_all_variables_know_the_same_words(text, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("ZNN_WINOGRAD", "ZNN_MATRIX_UNIT", "ZNN_KERNEL_CACHE", "ZNN_SCHEDULES"):
        put(monkeypatch, name, text)
    cache.store("entry", b"code")
    assert conv._at_points() is expected and switches.on("ZNN_MATRIX_UNIT") is expected
    assert (cache.load("entry") is not None) is expected
    assert database.file() == (tmp_path / "znn" / "schedules.sqlite" if expected else None)


@pytest.mark.parametrize("name", ["ZNN_WINOGRAD", "ZNN_MATRIX_UNIT", "ZNN_KERNEL_CACHE"])
def test_other_words_are_refused(name, monkeypatch):
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(ValueError, match=f"{name}=maybe: expected one of 1, on, true, yes, 0, off, false, no"):
        switches.on(name)


def test_the_cache_does_not_hide_a_switch_that_is_misspelt(monkeypatch):
    monkeypatch.setenv("ZNN_KERNEL_CACHE", "nope")
    for use in (lambda: cache.load("entry"), lambda: cache.store("entry", b"")):
        with pytest.raises(ValueError, match="ZNN_KERNEL_CACHE=nope"):
            use()
