"""A property that is computed once."""

from __future__ import annotations

from cockpit_core.foundation.kept import kept


class Counted:
    asked = 0

    @kept
    def number(self) -> int:
        """How often it was asked for."""
        self.asked += 1
        return self.asked


def test_it_is_computed_once_for_each_object() -> None:
    one, other = Counted(), Counted()
    assert (one.number, one.number, one.asked) == (1, 1, 1)
    assert (other.asked, other.number) == (0, 1)


def test_an_error_is_not_kept() -> None:
    class Fails(Counted):
        @kept
        def number(self) -> int:
            self.asked += 1
            if self.asked == 1:
                raise ValueError("not yet")
            return self.asked

    one = Fails()
    try:
        _ = one.number
    except ValueError:
        pass
    assert one.number == 2


def test_of_a_class_it_is_the_property_itself() -> None:
    assert isinstance(Counted.number, kept)
    assert Counted.number.__doc__ == "How often it was asked for."
