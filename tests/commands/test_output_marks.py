"""A mark of a file of lines is never applied to another file."""

import os
from contextlib import closing

import pytest

from polyaforest.io.file_identity import read_birth_time
from polyaforest.live.loop import _MARK
from polyaforest.live.outputs import FileLines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def marked(path, *before):
    """The mark of a file with these lines."""
    with closing(FileLines(str(path))) as lines:
        for line in before:
            lines.write(line)
        return lines.mark()


def rewound(path, mark):
    with closing(FileLines(str(path))) as lines:
        lines.rewind(mark)
        return lines.notices


def with_inode_of(path, mark):
    """A mark as it would be if the file at a path had been given the inode of the marked one."""
    facts = path.stat()
    return {**mark, "device": facts.st_dev, "inode": facts.st_ino}


@pytest.mark.parametrize("other", [b"two\n" * 50, b"one\nt", b"on"])
def test_a_file_with_the_inode_of_the_marked_one_is_kept(path, other):
    mark = marked(path, b"one\n", b"two\n")
    path.unlink()
    path.write_bytes(other)
    (words,) = rewound(path, with_inode_of(path, mark))
    assert "is not the file of the last save" in words
    assert path.read_bytes() == other


def test_a_later_file_with_the_inode_of_one_that_was_empty_is_kept(path):
    with closing(FileLines(str(path))) as lines:
        mark = lines.mark()
    if mark["born"] is None:
        pytest.skip("the file system does not say when files were made")
    path.write_bytes(b"of somebody else\n")
    (words,) = rewound(path, with_inode_of(path, {**mark, "born": mark["born"] - 1}))
    assert "is not the file of the last save" in words
    assert path.read_bytes() == b"of somebody else\n"


def test_inodes_of_64_bits_can_be_resumed_from(path):
    _MARK(marked(path, b"one\n") | {"device": 2**64 - 1, "inode": 2**64 - 1}, "out")


def test_marks_of_earlier_releases_are_understood(path):
    mark = marked(path, b"one\n")
    path.write_bytes(b"one\ntwo\n")
    assert rewound(path, {name: mark[name] for name in ("path", "inode", "length")}) == []
    assert path.read_bytes() == b"one\n"
    (words,) = rewound(path, {"path": str(path), "inode": None, "length": 0})  # there was no file yet
    assert "may be duplicated" in words
    assert path.read_bytes() == b"one\n"


def test_a_file_that_was_truncated_meanwhile_is_told_of(path):
    with closing(FileLines(str(path))) as lines:
        lines.mark()
        lines.write(b"one\ntwo\n")
        os.truncate(path, 4)
        assert lines.has_moved
        assert lines.mark()["length"] == 4
        assert "was truncated by another process" in lines.notices[0]
        assert not lines.has_moved


def test_a_file_that_was_replaced_meanwhile_is_added_to(path):
    with closing(FileLines(str(path))) as lines:
        lines.write(b"one\n")
        other = path.with_name("other")
        other.write_bytes(b"two\n")
        os.replace(other, path)
        assert lines.has_moved
        lines.mark()
        lines.write(b"three\n")
        assert "was deleted with its lines" in lines.notices[0]
    assert path.read_bytes() == b"two\nthree\n"


def test_a_file_made_for_nothing_is_removed_and_one_that_was_there_is_not(path):
    marked(path)
    assert not path.exists()
    path.touch()
    marked(path)
    assert path.exists()


def test_the_time_when_a_file_was_made_stays(path):
    with open(path, "wb") as file:
        born = read_birth_time(file.fileno())
        file.write(b"x")
        file.flush()
        os.utime(path, (1, 1))
        assert read_birth_time(file.fileno()) == born
