"""The way out at the end of messages that have none."""

import errno

import pytest

from fastsft.runtime.ways_out import reading_advice, way_out, with_way_out


class OtherError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a: expected b"), "a: expected b; copy it again"),
        (ValueError("a: expected b; name c"), "a: expected b; name c"),
        (OtherError("a: expected b"), "a: expected b"),
        (TypeError("a: expected b"), "a: expected b"),
    ],
)
def test_a_value_error_gets_the_advice_once(error, message):
    with pytest.raises(type(error)) as raised, way_out("copy it again"):
        raise error
    assert str(raised.value) == message


def test_no_advice_leaves_the_message():
    assert with_way_out("a", "") == "a"
    assert with_way_out("a", "; b") == with_way_out("a", "b") == "a; b"


def test_advice_goes_by_the_number_of_the_error():
    assert "chmod" in reading_advice(PermissionError(errno.EACCES, "denied"))
    assert reading_advice(OSError(errno.EBADF, "")) == reading_advice(ValueError("a")) == ""
