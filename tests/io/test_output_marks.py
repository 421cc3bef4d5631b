"""A mark of an output file is never applied to another file."""

import os
from contextlib import closing

import pytest

from polyaforest.io.file_identity import read_birth_time
from polyaforest.io.outputs import FileLines
from polyaforest.judge.loop import _MARK

pytestmark = pytest.mark.fault


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def marked(path, *before):
    """Return the mark of a file with these lines."""
    with closing(FileLines(str(path))) as lines:
        for line in before:
            lines.write(line)
        return lines.mark()


def rewound(path, mark):
    with closing(FileLines(str(path))) as lines:
        lines.rewind(mark)
        return lines.notices


def with_inode_of(path, mark):
    """Return the mark as if the file at a path had reused the inode of the marked file."""
    facts = path.stat()
    return {**mark, "device": facts.st_dev, "inode": facts.st_ino}


@pytest.mark.parametrize("other", [b"two\n" * 50, b"one\nt", b"on"])
def test_rewind_keeps_another_file_with_the_marked_inode(path, other):
    mark = marked(path, b"one\n", b"two\n")
    path.unlink()
    path.write_bytes(other)
    (words,) = rewound(path, with_inode_of(path, mark))
    assert "is not the file of the last save" in words
    assert path.read_bytes() == other


def test_rewind_keeps_a_later_file_with_the_inode_of_an_empty_one(path):
    with closing(FileLines(str(path))) as lines:
        mark = lines.mark()
    if mark["born"] is None:
        pytest.skip("the file system does not say when files were made")
    path.write_bytes(b"of somebody else\n")
    (words,) = rewound(path, with_inode_of(path, {**mark, "born": mark["born"] - 1}))
    assert "is not the file of the last save" in words
    assert path.read_bytes() == b"of somebody else\n"


def test_mark_accepts_inodes_of_64_bits(path):
    _MARK(marked(path, b"one\n") | {"device": 2**64 - 1, "inode": 2**64 - 1}, "out")


def test_rewind_accepts_marks_of_earlier_releases(path):
    mark = marked(path, b"one\n")
    path.write_bytes(b"one\ntwo\n")
    assert rewound(path, {name: mark[name] for name in ("path", "inode", "length")}) == []
    assert path.read_bytes() == b"one\n"
    (words,) = rewound(path, {"path": str(path), "inode": None, "length": 0})  # there was no file yet
    assert "may be duplicated" in words
    assert path.read_bytes() == b"one\n"


def test_mark_reports_a_truncated_file(path):
    with closing(FileLines(str(path))) as lines:
        lines.mark()
        lines.write(b"one\ntwo\n")
        os.truncate(path, 4)
        assert lines.has_moved
        assert lines.mark()["length"] == 4
        assert "was truncated by another process" in lines.notices[0]
        assert not lines.has_moved


def test_mark_appends_to_a_replaced_file(path):
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


def test_close_removes_only_new_empty_files(path):
    marked(path)
    assert not path.exists()
    path.touch()
    marked(path)
    assert path.exists()


def test_birth_time_of_a_file_is_stable(path):
    with open(path, "wb") as file:
        born = read_birth_time(file.fileno())
        file.write(b"x")
        file.flush()
        os.utime(path, (1, 1))
        assert read_birth_time(file.fileno()) == born
