"""Model files are read exactly as they were written, or rejected."""

import errno
import hashlib
import io
import json
import os
import random
import re
import stat
import struct
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from effort import FULL, PROFILE
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy

from polyaforest.storage import modelfile
from polyaforest.storage.modelfile import ModelFileError, read_model, version_for, write_model

HEADER = {"kind": "x", "values": [1, 0.1, None, True, "ä\ud800"], "nested": {"": {}}}
ARRAYS = {"cut": np.array([[0.5, -0.0, np.nan]]), "tree/left": np.array([1, -1], np.int32), "empty": np.zeros((2, 0))}
SEAL = b"polyaforest sha256 "
SEAL_SIZE = len(SEAL) + 64

posix = pytest.mark.skipif(os.name != "posix", reason="about POSIX permissions, pipes and links")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.mpf"


@pytest.fixture
def model(path):
    write_model(path, HEADER, ARRAYS)
    return path


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in found.items():
        other = expected[name]
        assert (array.dtype, array.shape) == (other.dtype.newbyteorder("="), other.shape)
        assert array.tobytes() == other.astype(array.dtype).tobytes()


def assert_refused(path, reason="."):
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    start, _, given = str(caught.value).partition(" cannot be read as a model: ")
    assert start == repr(str(path))
    assert re.search(reason, given)


def sealed(body):
    """Append a valid seal to `body`, which ends with an end record that declares a comment."""
    return body + SEAL + hashlib.sha256(body).hexdigest().encode()


def npy_bytes(array, **options):
    stream = io.BytesIO()
    npy.write_array(stream, array, **options)
    return stream.getvalue()


def header_of(arrays, /, **changes):
    described = {
        name: {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": hashlib.sha256(array.data).hexdigest()}
        for name, array in arrays.items()
    }
    return {"format": "polyaforest", "version": 1, "header": HEADER, "arrays": described, **changes}


def as_text(header):
    return json.dumps(header, separators=(",", ":")).encode()


def craft(path, *, arrays=ARRAYS, header=None, text=None, entries=None, compression=zipfile.ZIP_STORED):
    """Write a sealed file like `write_model`'s, with some parts replaced."""
    if text is None:
        text = as_text(header_of(arrays) if header is None else header)
    if entries is None:
        entries = [(f"{name}.npy", npy_bytes(array)) for name, array in arrays.items()]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in [("header.json.npy", npy_bytes(np.frombuffer(text, np.uint8))), *entries]:
            archive.writestr(name, content)
        archive.comment = bytes(SEAL_SIZE)
    path.write_bytes(sealed(stream.getvalue()[:-SEAL_SIZE]))


# ---- round trips -----------------------------------------------------------------------------------------------------

dtypes = st.sampled_from(["bool", "u1", "i4", "i8", "u8", "f8", ">i4", ">f8", "f4", "f2", "i1"])
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
names = st.from_regex(r"[a-zA-Z0-9_]{1,8}(/[a-zA-Z0-9_]{1,8})?", fullmatch=True)
models = st.dictionaries(names, hnp.arrays(dtypes, shapes), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)


@given(header=st.dictionaries(st.text(), json_values, max_size=3), arrays=models)
@example(header=HEADER, arrays=ARRAYS)
def test_reads_what_was_written(header, arrays):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        write_model(path, header, arrays)
        found_header, found = read_model(path)
    assert found_header == header
    assert json.dumps(found_header) == json.dumps(header)  # also the order of keys, and 1 is not 1.0
    assert_same(found, arrays)
    for array in found.values():
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.dtype.isnative


def test_reads_any_layout_as_c_order(path):
    array = np.arange(24.0).reshape(2, 3, 4)
    read_only = array.copy()
    read_only.setflags(write=False)
    arrays = {"transposed": array.T, "strided": array[:, ::-2], "fortran": np.asfortranarray(array), "fixed": read_only}
    write_model(path, {}, arrays)
    assert_same(read_model(path)[1], arrays)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in read_model(path)[1].values())


def test_numpy_reads_file_and_header(model):
    with np.load(model, allow_pickle=False) as archive:
        assert archive.files == ["header.json", *ARRAYS]
        assert_same({name: archive[name] for name in ARRAYS}, ARRAYS)
        text = archive["header.json"]
    assert text.dtype == np.uint8
    assert text.tobytes() == as_text(header_of(ARRAYS, version=version_for(HEADER)))


def test_equal_models_give_equal_bytes(model, tmp_path):
    os.utime(model, (0, 0))
    write_model(tmp_path / "other", HEADER, {name: array.copy() for name, array in ARRAYS.items()})
    assert (tmp_path / "other").read_bytes() == model.read_bytes()
    write_model(tmp_path / "other", *read_model(model))
    assert (tmp_path / "other").read_bytes() == model.read_bytes()


def test_accepts_string_and_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model("model", HEADER, ARRAYS)
    assert read_model("model")[0] == read_model(tmp_path / "model")[0] == HEADER


def test_supports_longest_shapes(path):
    arrays = {"ones": np.zeros((1,) * 32), "none": np.zeros((0, 2**30, 2**29) + (1,) * 29, np.int8)}
    write_model(path, {}, arrays)
    assert_same(read_model(path)[1], arrays)


def test_supports_longest_file_name(tmp_path):
    path = tmp_path / ("ä" * 127)
    write_model(path, HEADER, ARRAYS)
    assert read_model(path)[0] == HEADER


def test_closes_file_and_keeps_no_reference_to_it(model):
    header, arrays = read_model(model)
    model.write_bytes(b"")
    assert header == HEADER
    assert_same(arrays, ARRAYS)


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_detects_every_flipped_bit(model):
    whole = model.read_bytes()
    for place in range(len(whole)):
        for bit in range(8) if PROFILE == FULL else [place % 8]:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            model.write_bytes(damaged)
            assert_refused(model)
    model.write_bytes(whole)
    read_model(model)


def test_detects_every_truncation(model):
    whole = model.read_bytes()
    for length in range(len(whole)):
        model.write_bytes(whole[:length])
        assert_refused(model)
        model.write_bytes(whole[len(whole) - length :])
        assert_refused(model)


def test_detects_added_and_missing_bytes(model):
    whole = model.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place] + whole[place + 1 :], whole[:place] + b"\0" + whole[place:]):
            model.write_bytes(damaged)
            assert_refused(model)
    for damaged in (whole + b"\0", b"\0" + whole, whole + whole, whole + b"\n", whole + sealed(b"")):
        model.write_bytes(damaged)
        assert_refused(model)


def mutated(whole, rng):
    """Overwrite, drop or repeat a few spans of bytes, more often near the end, where the directory is."""
    body = bytearray(whole)
    for _ in range(rng.choice([1, 2, 8])):
        place = rng.randrange(len(body) if rng.random() < 0.5 else 400)
        span = slice(len(body) - place - 1, len(body) - place - 1 + rng.choice([1, 2, 4, 8]))
        width = len(body[span])
        body[span] = rng.choice([b"\xff" * width, bytes(width), rng.randbytes(width), b"", body[span] * 2])
    return bytes(body)


def test_detects_random_mutations(model):
    whole = model.read_bytes()
    rng = random.Random(0)
    for _ in range(1000):
        damaged = mutated(whole, rng)
        if damaged != whole:
            model.write_bytes(damaged)
            assert_refused(model)


def test_sealed_mutation_is_rejected_or_harmless(model):
    body = model.read_bytes()[:-SEAL_SIZE]
    rng = random.Random(1)
    flips = [(place, 1 << rng.randrange(8)) for place in range(len(body))]
    flipped = (body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :] for place, bit in flips)
    for damaged in (*flipped, *(mutated(body, rng) for _ in range(2000))):
        model.write_bytes(sealed(damaged))
        try:
            header, arrays = read_model(model)
        except ModelFileError:
            continue
        assert header == HEADER
        assert_same(arrays, ARRAYS)


# ---- other files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"P", "not a polyaforest model"),
        (b"some text\n" * 100, "not a polyaforest model"),
        (b"PK\x03\x04", "does not end with a seal"),
        (sealed(b"PK\x03\x04"), "not a zip file"),
        (SEAL + b"0" * 64, "not a polyaforest model"),
    ],
)
def test_rejects_other_files(path, content, reason):
    path.write_bytes(content)
    assert_refused(path, reason)


def test_rejects_other_archive(path):
    with path.open("wb") as file:
        np.savez(file, a=np.arange(3))
    assert_refused(path, "does not end with a seal")


def test_rejects_directory(tmp_path):
    assert_refused(tmp_path, "it is a directory, not a file")
    with pytest.raises(ModelFileError, match="it is a directory, not a file"):
        write_model(tmp_path, HEADER, ARRAYS)


@posix
def test_rejects_pipe_without_waiting(path):
    os.mkfifo(path)
    assert_refused(path, "a pipe or a device")
    with pytest.raises(ModelFileError, match="a pipe or a device"):
        write_model(path, HEADER, ARRAYS)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_missing_file_raises_file_not_found(path):
    with pytest.raises(FileNotFoundError, match=r"model\.mpf"):
        read_model(path)
    with pytest.raises(FileNotFoundError, match="folder/model'"):
        write_model(path.parent / "folder" / "model", HEADER, ARRAYS)


def test_disk_error_is_not_reported_as_damage(model, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(modelfile, "_seal", fail)
    with pytest.raises(OSError, match="broken disk"):
        read_model(model)


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may read and write everything")
def test_permission_error_propagates(model):
    model.chmod(0o000)
    with pytest.raises(PermissionError):
        read_model(model)
    model.chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        write_model(model, {}, {})
    model.parent.chmod(0o555)
    with pytest.raises(PermissionError):
        write_model(model.with_name("new"), {}, {})
    model.parent.chmod(0o755)
    assert read_model(model)[0] == HEADER


# ---- crafted files: a valid seal, and one fault ----------------------------------------------------------------------


def test_reads_crafted_file_without_fault(path):
    craft(path)
    header, arrays = read_model(path)
    assert header == HEADER
    assert_same(arrays, ARRAYS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "other"}, "not a polyaforest model"),
        ({"version": 5}, "format version 5, but this release reads up to 4: upgrade polyaforest"),
        ({"version": 10**30, "arrays": None}, "upgrade polyaforest"),
        ({"version": 0}, r"format version 0, but this release reads \[1, 2, 3, 4\]"),
        ({"version": -1}, r"format version -1, but this release reads \[1, 2, 3, 4\]"),
        ({"version": True}, "format version must be an integer; got True"),
        ({"version": 1.0}, "must be an integer; got 1.0"),
        ({"version": "1"}, "must be an integer; got '1'"),
        ({"version": None}, "must be an integer; got None"),
        ({"more": 1}, "keys"),
        ({"header": None}, "does not describe"),
        ({"header": [1]}, "does not describe"),
        ({"arrays": list(ARRAYS)}, "does not describe"),
        ({"arrays": {}}, "entries differ from the list"),
        ({"header": {"x": float("nan")}}, "JSON"),
        ({"header": {"x": float("-inf")}}, "JSON"),
    ],
)
def test_rejects_invalid_header(path, changes, reason):
    craft(path, header=header_of(ARRAYS, **changes))
    assert_refused(path, reason)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"polyaforest"',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 10_000,
        as_text(header_of(ARRAYS)) + b"\n",
        as_text(header_of(ARRAYS)).replace(b'"version":1,', b'"version":1,"version":1,'),
        as_text(header_of(ARRAYS)).replace(b"0.1", b"1e999"),
        as_text(header_of(ARRAYS)).replace(b"0.1", b"0.10"),
        as_text(header_of(ARRAYS)).decode().encode("utf-16"),
        as_text({"format": "polyaforest"}),
    ],
    ids=lambda text: text[:12],
)
def test_rejects_header_that_is_not_canonical_json(path, text):
    craft(path, text=text)
    assert_refused(path)


def test_rejects_too_large_header(path, monkeypatch):
    text = as_text(header_of(ARRAYS))
    monkeypatch.setattr(modelfile, "_LARGEST_HEADER", len(text))
    craft(path)
    read_model(path)
    monkeypatch.setattr(modelfile, "_LARGEST_HEADER", len(text) - 1)
    assert_refused(path, f"at most {len(text) - 1:,} are allowed")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "<i8"},
        {"dtype": "|O"},
        {"dtype": None},
        {"shape": [3]},
        {"shape": [1, 3.5]},
        {"shape": [-1, 3]},
        {"shape": [2**62, 2**62]},
        {"shape": 3},
        {"shape": None},
        {"sha256": "0" * 64},
        {"sha256": 0},
        {"more": 1},
    ],
    ids=str,
)
def test_rejects_array_that_differs_from_header(path, change):
    header = header_of(ARRAYS)
    header["arrays"]["cut"] |= change
    craft(path, header=header)
    assert_refused(path, "array 'cut' does not match its description in the header")


def test_rejects_missing_extra_and_misplaced_entries(path):
    entries = [(f"{name}.npy", npy_bytes(array)) for name, array in ARRAYS.items()]
    wrong = {
        "missing": entries[1:],
        "extra": [*entries, ("more.npy", entries[0][1])],
        "misplaced": entries[::-1],
        "no array": [*entries, ("readme.txt", b"hello")],
    }
    for changed in wrong.values():
        craft(path, entries=changed)
        assert_refused(path, "entries differ from the list in its header")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_rejects_repeated_entry(path):
    entries = [(f"{name}.npy", npy_bytes(array)) for name, array in ARRAYS.items()]
    craft(path, entries=[*entries, entries[0]])
    assert_refused(path, "entries differ from the list in its header")


def test_rejects_archive_without_header(path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("cut.npy", npy_bytes(ARRAYS["cut"]))
        archive.comment = bytes(SEAL_SIZE)
    path.write_bytes(sealed(stream.getvalue()[:-SEAL_SIZE]))
    assert_refused(path, "no model header")
    path.write_bytes(sealed(b"PK\x03\x04" + b"PK\x05\x06" + bytes(16) + struct.pack("<H", SEAL_SIZE)))
    assert_refused(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rejects_compressed_entry_before_inflating(path, compression):
    craft(path, arrays={"bomb": np.zeros(10**6)}, compression=compression)
    assert path.stat().st_size < 10**5
    assert_refused(path, "compressed")


def npy_claiming(array, descr, shape, *, fortran=False):
    """Return the entry of `array` with another header."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return stream.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (npy_claiming(ARRAYS["cut"], "<f8", (1, 4)), "wrong number of bytes for its shape"),
        (npy_claiming(ARRAYS["cut"], "<f8", (1, 2)), "wrong number of bytes for its shape"),
        (npy_claiming(ARRAYS["cut"], "<f8", (2**40,)), "wrong number of bytes for its shape"),
        (npy_claiming(ARRAYS["cut"], "<f8", (2**62, 2**62)), "wrong number of bytes for its shape"),
        (npy_claiming(ARRAYS["empty"], "<f8", (0, 2**62, 2**62)), "."),
        (npy_claiming(ARRAYS["cut"], "<f8", (-1, -3)), "."),
        (npy_claiming(ARRAYS["cut"], "<f8", (3,)), "does not match its description in the header"),
        (npy_claiming(ARRAYS["cut"], "<f8", (1,) * 70 + (3,)), "."),
        (npy_claiming(ARRAYS["cut"], ">f8", (1, 3)), "dtype"),
        (npy_claiming(ARRAYS["cut"], "<m8[s]", (1, 3)), "dtype"),
        (npy_claiming(ARRAYS["cut"], "|S8", (1, 3)), "dtype"),
        (npy_claiming(ARRAYS["cut"], "|O", (1, 3)), "dtype object"),
        (npy_claiming(ARRAYS["cut"], [("a", "<f8")], (1, 3)), "dtype"),
        (npy_claiming(ARRAYS["cut"], "<f8", (1, 3), fortran=True), "order F"),
        (npy_bytes(ARRAYS["cut"].astype(object), allow_pickle=True), "dtype object"),
        (npy_bytes(ARRAYS["cut"], version=(2, 0)), "must use version 1.0 of NumPy's format"),
        (b"", "."),
        (b"hello", "."),
        (npy.magic(1, 0) + struct.pack("<H", 60_000) + b"[" * 60_000, "."),
        (npy.magic(1, 0) + struct.pack("<H", 9_999) + b"-" * 9_998 + b"1", "."),
        (npy.magic(1, 0) + struct.pack("<H", 1_023) + b"-" * 1_022 + b"1", "."),
        (npy.magic(1, 0) + struct.pack("<H", 1_023) + b"[" * 1_023, "."),
        (npy.magic(1, 0) + struct.pack("<H", 9_999) + b"[" * 9_999, "."),
    ],
)
def test_rejects_invalid_array_entry(path, entry, reason):
    rest = [(f"{name}.npy", npy_bytes(array)) for name, array in ARRAYS.items() if name != "cut"]
    craft(path, entries=[("cut.npy", entry), *rest])
    assert_refused(path, reason)


def test_rejects_entries_larger_than_file(path):
    craft(path)
    body = bytearray(path.read_bytes()[:-SEAL_SIZE])
    entry = body.rindex(b"PK\x01\x02", 0, body.rindex(b"cut.npy"))  # its record in the directory
    body[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    path.write_bytes(sealed(bytes(body)))
    assert_refused(path, "declare more bytes than the file has")


def test_rejects_unsupported_version(model, monkeypatch):
    """A later release may drop the current version."""
    monkeypatch.setattr(modelfile, "FORMAT_VERSION", 4)
    assert read_model(model)[0] == HEADER
    monkeypatch.setattr(modelfile, "_VERSIONS", (4,))
    assert_refused(model, r"format version 3, but this release reads \[4\]")


# ---- invalid contents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "header.json", "../up", "/root", "a//b", "a/", "a.npy", "ä", "a b", "a\0b", "a\n", "x" * 65, "a/" * 4 + "a"],
)
def test_rejects_ambiguous_array_names(path, name):
    with pytest.raises(ValueError, match="array name"):
        write_model(path, {}, {name: np.zeros(1)})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("dtype", ["O", "S3", "U3", "m8[s]", "M8[s]", "c16", "V8", [("a", "f8")]], ids=str)
def test_rejects_unsupported_dtypes(path, dtype):
    with pytest.raises(ValueError, match="array 'bad' is of dtype"):
        write_model(path, {}, {"good": np.zeros(1), "bad": np.zeros(1, dtype)})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, 2), {1: 2}, {1, 2}, b"x", np.int64(1), np.zeros(2)])
def test_rejects_headers_that_json_would_change(path, value):
    with pytest.raises((TypeError, ValueError)):
        write_model(path, {"key": value}, {})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("header", [None, [1], "x", {1: 2}])
def test_rejects_headers_that_are_not_dicts(path, header):
    with pytest.raises((TypeError, ValueError), match="header"):
        write_model(path, header, {})
    assert not list(path.parent.iterdir())


def test_rejects_header_too_large_to_read_back(path, monkeypatch):
    monkeypatch.setattr(modelfile, "_LARGEST_HEADER", 1000)
    with pytest.raises(ValueError, match="more than 1,000"):
        write_model(path, {"key": "x" * 1000}, {})
    assert not list(path.parent.iterdir())


# ---- atomic writes ---------------------------------------------------------------------------------------------------


def no_space(*_args, **_options):
    raise OSError(errno.ENOSPC, "no space left")


def interrupted(*_args, **_options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [no_space, interrupted])
@pytest.mark.parametrize(
    "place",
    [
        "os.fsync",
        "os.replace",
        "os.chmod",
        "polyaforest.storage.modelfile._write_entry",
        "polyaforest.storage.modelfile._seal",
    ],
)
def test_error_leaves_old_file_only(model, monkeypatch, place, failure):
    before = model.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(place, failure)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_model(model, {"new": 1}, ARRAYS)
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_error_within_arrays_leaves_old_file(model, monkeypatch):
    before = model.read_bytes()
    write_entry, calls = modelfile._write_entry, []

    def fail_later(*arguments):
        calls.append(1)
        return write_entry(*arguments) if len(calls) < 3 else no_space()

    with monkeypatch.context() as patch:
        patch.setattr(modelfile, "_write_entry", fail_later)
        with pytest.raises(OSError, match="no space"):
            write_model(model, {"new": 1}, ARRAYS)
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_syncs_file_before_replacing(model, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(new, target):
        steps.append("replace")
        assert os.path.dirname(new) == os.path.dirname(target)
        assert read_model(new)[0] == {"new": 1}
        replace(new, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_model(model, {"new": 1}, ARRAYS)
    assert steps == ["file", "replace", "folder"] if os.name == "posix" else ["file", "replace"]


@posix
def test_ignores_folder_sync_errors(model, monkeypatch):
    fsync = os.fsync

    def reject_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not here")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", reject_folders)
    write_model(model, {"new": 1}, ARRAYS)
    assert read_model(model)[0] == {"new": 1}


@posix
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_new_file_follows_umask(path, umask):
    before = os.umask(umask)
    try:
        write_model(path, HEADER, ARRAYS)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_new_file_gets_permissions_of_old_before_writing(model, mode, monkeypatch):
    modes = []
    write_entry = modelfile._write_entry

    def note_mode(*arguments):
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in model.parent.iterdir())
        return write_entry(*arguments)

    model.chmod(mode)
    monkeypatch.setattr(modelfile, "_write_entry", note_mode)
    write_model(model, {"new": 1}, ARRAYS)
    assert set(modes) == {mode}
    assert len(modes) == 2 * (1 + len(ARRAYS))
    assert stat.S_IMODE(model.stat().st_mode) == mode


@posix
def test_does_not_replace_read_only_file(model, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for users other than root
    with pytest.raises(PermissionError, match="read-only"):
        write_model(model, {}, {})
    assert read_model(model)[0] == HEADER


@posix
def test_follows_symbolic_link(model, tmp_path):
    (tmp_path / "links").mkdir()
    link, dangling, loop = (tmp_path / "links" / name for name in ("link", "dangling", "loop"))
    link.symlink_to("../model.mpf")
    write_model(link, {"new": 1}, ARRAYS)
    assert link.is_symlink()
    assert read_model(model)[0] == read_model(link)[0] == {"new": 1}

    dangling.symlink_to("../later.mpf")
    with pytest.raises(FileNotFoundError):
        read_model(dangling)
    write_model(dangling, HEADER, ARRAYS)
    assert dangling.is_symlink()
    assert read_model(tmp_path / "later.mpf")[0] == HEADER

    loop.symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_model(loop, HEADER, ARRAYS)
    assert loop.is_symlink()
    assert sorted(file.name for file in (tmp_path / "links").iterdir()) == ["dangling", "link", "loop"]


def test_unfinished_files_have_recognisable_names(model, monkeypatch):
    seen = []
    write_entry = modelfile._write_entry

    def look(*arguments):
        seen.extend(file.name for file in model.parent.iterdir() if file != model)
        return write_entry(*arguments)

    monkeypatch.setattr(modelfile, "_write_entry", look)
    for _ in range(2):
        write_model(model, HEADER, ARRAYS)
    assert len(set(seen)) == 2
    assert all(name.startswith(".model.mpf.") and name.endswith(".tmp") for name in seen)
    assert list(model.parent.iterdir()) == [model]


def test_concurrent_writers_do_not_mix(model):
    def write(number):
        for _ in range(10):
            write_model(model, {"number": number}, {"array": np.full(10_000, number)})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    write(0)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if sys.platform != "win32":  # where a file being read cannot be replaced
            header, arrays = read_model(model)
            assert (arrays["array"] == header["number"]).all()
    for writer in writers:
        writer.join()
    assert list(model.parent.iterdir()) == [model]
