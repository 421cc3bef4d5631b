"""Detection of the header of a CSV file from its first two lines."""

import pytest

from polyaforest.io.tables import open_table

ROWS = {
    "numbers": ("1,2,3\n4,5,6\n", False),
    "numbers and gaps": ("1,,3\n4,5,6\n", False),
    "names": ("a,b,c\n1,2,3\n", True),
    "dates and numbers": ("2024-05-01,1.5,2\n2024-05-02,1.6,3\n", False),
    "times and numbers": ("2024-05-01T00:00:00Z,1.5\n2024-05-01T00:01:00Z,1.6\n", False),
    "texts and numbers": ("web-1,1.5,200\nweb-2,1.6,203\n", False),
    "a name above texts": ("host,cpu\nweb-1,0.5\n", True),
    "a number among the names": ("host,p99,99\nweb-1,2.0,3.0\n", True),
    "years for names": ("country,2019,2020,2021\nFrance,5,6,7\n", True),
}


@pytest.mark.parametrize(("text", "has_header"), ROWS.values(), ids=ROWS)
def test_row_is_not_mistaken_for_header(tmp_path, text, has_header):
    path, last = tmp_path / "a.csv", text.splitlines()[1]
    path.write_text(f"{text}{last.replace('2', '8').replace('3', '9').replace('5', '7').replace('6', '1')}\n")
    table = open_table([str(path)])
    assert table.has_header == has_header
    assert sum(len(chunk.rows) for chunk in table.chunks()) == 3 - has_header
    table.close()
