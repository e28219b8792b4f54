"""Arguments that are members of enumerations in transformers' class: strings that scripts may read so."""

from __future__ import annotations

_FIELDS = (
    "eval_strategy", "logging_strategy", "save_strategy", "lr_scheduler_type", "optim", "hub_strategy",
)  # fmt: skip
# Where the name of transformers' member is not its value in capitals.
_NAMES = {"reduce_lr_on_plateau": "REDUCE_ON_PLATEAU", "adamw_bnb_8bit": "ADAMW_BNB"}


class Choice(str):
    """A string with the `value` and `name` of transformers' member; in all else the string."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The plain string."""
        return str(self)

    @property
    def name(self) -> str:
        """Of transformers' member: STEPS."""
        return _NAMES.get(self, self.upper())


def name_choices(args: object) -> None:
    """Make the settled fields that transformers has as members `Choice`s."""
    for name in _FIELDS:
        value = getattr(args, name)
        if isinstance(value, str):
            setattr(args, name, Choice(value))


def plain(value: object) -> object:
    """A `Choice` as its plain string; any other value as it is."""
    return value.value if isinstance(value, Choice) else value


def is_same(one: object, other: object) -> bool:
    """Equal and of one type: True is not 1."""
    one, other = plain(one), plain(other)
    return type(one) is type(other) and bool(one == other)
