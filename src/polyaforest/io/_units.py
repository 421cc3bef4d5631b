"""Units, currencies and percent signs of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SIGNS", "UnitFamily", "family_of"]

_NO_SIGN = ""  # a number without a unit

# By the sign that messages show: "$" is not always the US dollar.
_CURRENCIES = {
    "€": "EUR", "$": "USD US$", "£": "GBP", "¥": "JPY", "CNY": "CN¥ 元 RMB", "₹": "INR Rs Rs.", "₽": "RUB", "₩": "KRW",
    "₺": "TRY TL", "₴": "UAH", "₪": "ILS", "฿": "THB", "₫": "VND", "₦": "NGN", "₱": "PHP", "R$": "BRL", "CAD": "C$ CA$",
    "AUD": "A$ AU$", "NZD": "NZ$", "HKD": "HK$", "SGD": "S$", "TWD": "NT$", "MXN": "MX$", "CHF": "Fr. SFr.",
    "zł": "PLN", "Kč": "CZK", "Ft": "HUF", "RON": "lei", "BGN": "лв", "kr": "kr.", "SEK": "", "NOK": "", "DKK": "",
    "ZAR": "", "AED": "", "SAR": "", "IDR": "Rp", "MYR": "RM", "CLP": "", "COP": "", "ARS": "", "EGP": "", "₿": "BTC",
}  # fmt: skip
_MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)}


def _prefixed(unit: str, prefixes: Mapping[str, float]) -> dict[str, float]:
    """Return the factors of a unit with each prefix, and without."""
    return {unit: 1.0, **{prefix + unit: factor for prefix, factor in prefixes.items()}}


def _per_second(units: Mapping[str, float]) -> dict[str, float]:
    """Return the factors of units per second."""
    return {f"{unit}/s": factor for unit, factor in units.items()}


def _named(factors: Mapping[str, float]) -> dict[str, float]:
    """Split the keys, which are words with the same factor."""
    return {word: factor for words, factor in factors.items() for word in words.split()}


_MILLI = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_BYTES = {
    **_prefixed("B", {**_MULTIPLES, **_BINARY}),
    **_named({"byte bytes Byte Bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}),
}
_BITS = {**_prefixed("bit", _MULTIPLES), **_named({"bits b": 1.0, "Kb": 1e3, "Mb": 1e6, "Gb": 1e9})}


@dataclass(frozen=True, eq=False)
class UnitFamily:
    """Units that convert into each other.

    Attributes
    ----------
    base : str
        The unit to convert values to; empty for plain numbers.
    factors : mapping
        Factor of each unit, in base units.
    precedes : bool
        Whether the unit may precede the number, as in "$5".
    bare : bool
        Whether a number without a unit is in the base unit; otherwise only zero may lack a unit.
    """

    base: str
    factors: Mapping[str, float]
    precedes: bool = False
    bare: bool = False

    def factor(self, sign: str) -> float | None:
        """Return the factor of a unit, None if it is of another family."""
        return (1.0 if self.bare else None) if sign == _NO_SIGN else self.factors.get(sign)


def _currency(code: str, signs: str) -> UnitFamily:
    return UnitFamily(code, dict.fromkeys([code, *signs.split()], 1.0), precedes=True, bare=True)


# A sign may be in several families, such as m for metres and minutes: the family with most cells wins, then the first.
_FAMILIES = [
    UnitFamily("%", {"%": 1.0, "‰": 0.1, "pct": 1.0, "percent": 1.0}),
    *(_currency(code, signs) for code, signs in _CURRENCIES.items()),
    UnitFamily("B", _BYTES),
    UnitFamily("bit", _BITS),
    UnitFamily("B/s", {**_per_second(_BYTES), **_named({"Bps": 1.0, "kBps KBps": 1e3, "MBps": 1e6, "GBps": 1e9})}),
    UnitFamily(
        "bit/s", {**_per_second(_BITS), **_named({"bps": 1.0, "kbps Kbps": 1e3, "mbps Mbps": 1e6, "gbps Gbps": 1e9})}
    ),
    UnitFamily("m", _named({"nm": 1e-9, "µm μm um": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3})),
    UnitFamily(
        "s",
        _named({
            "ns": 1e-9, "us µs μs": 1e-6, "ms msec msecs": 1e-3, "s sec secs second seconds": 1.0,
            "m min mins minute minutes": 60.0, "h hr hrs hour hours": 3600.0, "d day days": 86_400.0,
            "w wk week weeks": 604_800.0,
        }),
    ),
    UnitFamily("g", _named({"µg μg ug": 1e-6, "mg": 1e-3, "g": 1.0, "kg": 1e3, "t": 1e6})),
    UnitFamily("lb", _named({"lb lbs": 1.0, "oz": 1 / 16})),
    UnitFamily("ft", _named({"ft": 1.0, "in": 1 / 12, "yd": 3.0, "mi": 5280.0})),
    UnitFamily("l", _named({"ml mL": 1e-3, "cl cL": 1e-2, "l L": 1.0, "hl hL": 100.0})),
    UnitFamily("Hz", _prefixed("Hz", _MILLI)),
    UnitFamily("W", _prefixed("W", _MILLI)),
    UnitFamily("Wh", _prefixed("Wh", _MILLI)),
    UnitFamily("J", _prefixed("J", _MILLI)),
    UnitFamily("V", _prefixed("V", {"µ": 1e-6, **_MILLI})),
    UnitFamily("A", _prefixed("A", {"µ": 1e-6, **_MILLI})),
    UnitFamily("Pa", {**_prefixed("Pa", {"h": 100.0, **_MILLI}), "bar": 1e5, "mbar": 100.0}),
    UnitFamily("m/s", {"m/s": 1.0, "km/h": 1 / 3.6}),
    UnitFamily("", _MULTIPLES, bare=True),
    *(UnitFamily(unit, {unit: 1.0}) for unit in ("°C", "°F", "°", "psi", "mph", "dB", "dBm", "rpm", "fps", "px")),
    *(UnitFamily(unit, {unit: 1.0}) for unit in ("req/s", "ops/s", "rps", "qps", "tps", "ppm", "ppb", "lx", "pt", "x")),
]  # fmt: skip


# All units, and no unit.
SIGNS = frozenset([_NO_SIGN, *(sign for family in _FAMILIES for sign in family.factors)])


def family_of(counts: Mapping[tuple[bool, str], int]) -> UnitFamily | None:
    """Return the family that covers most cells, or None.

    Parameters
    ----------
    counts : mapping
        Number of cells by (whether the sign precedes the number, sign).
    """

    def covered(family: UnitFamily) -> int:
        return sum(
            n for (precedes, sign), n in counts.items() if sign in family.factors and (family.precedes or not precedes)
        )

    best = max(_FAMILIES, key=covered)
    return best if covered(best) else None
