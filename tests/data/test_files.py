"""Files appear whole or not at all."""
import pytest

from data.files import replacing


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_at_the_end(tmp_path, durable):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path, durable) as partial:
        partial.write_text("new")
        assert path.read_text() == "old" and partial.parent == tmp_path
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_none_is_the_error_that_is_seen(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), replacing(tmp_path / "file" / "a.txt") as partial:
        partial.write_text("new")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt"):
        pass
