"""Units, currencies and percent signs that are written beside numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SIGNS", "Family", "family_of"]

_NO_SIGN = ""  # stands for a number on its own

# by the sign to name them by: "$" is not always that of the United States
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
    """Return a unit with each of some prefixes, and without."""
    return {unit: 1.0, **{prefix + unit: factor for prefix, factor in prefixes.items()}}


def _per_second(units: Mapping[str, float]) -> dict[str, float]:
    """Return rates of some units."""
    return {f"{unit}/s": factor for unit, factor in units.items()}


def _named(factors: Mapping[str, float]) -> dict[str, float]:
    """Return factors by the words in each key."""
    return {word: factor for words, factor in factors.items() for word in words.split()}


_MILLI = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_BYTES = {
    **_prefixed("B", {**_MULTIPLES, **_BINARY}),
    **_named({"byte bytes Byte Bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}),
}
_BITS = {**_prefixed("bit", _MULTIPLES), **_named({"bits b": 1.0, "Kb": 1e3, "Mb": 1e6, "Gb": 1e9})}


@dataclass(frozen=True, eq=False)
class Family:
    """Units that can be converted to each other.

    Attributes
    ----------
    base : str
        The unit that values are converted to; empty if there is none.
    factors : mapping
        Each unit in terms of the base.
    precedes : bool
        Whether it may be written before the number, as "$5".
    bare : bool
        Whether a number on its own is in the base unit; otherwise only zero is.
    """

    base: str
    factors: Mapping[str, float]
    precedes: bool = False
    bare: bool = False

    def factor(self, sign: str) -> float | None:
        """Return what a unit is in terms of the base, None if it is of another family."""
        return (1.0 if self.bare else None) if sign == _NO_SIGN else self.factors.get(sign)


def _currency(code: str, signs: str) -> Family:
    return Family(code, dict.fromkeys([code, *signs.split()], 1.0), precedes=True, bare=True)


# A sign may be in several families, as m for metres and minutes: the one with most cells wins, then the first one here.
_FAMILIES = [
    Family("%", {"%": 1.0, "‰": 0.1, "pct": 1.0, "percent": 1.0}),
    *(_currency(code, signs) for code, signs in _CURRENCIES.items()),
    Family("B", _BYTES),
    Family("bit", _BITS),
    Family("B/s", {**_per_second(_BYTES), **_named({"Bps": 1.0, "kBps KBps": 1e3, "MBps": 1e6, "GBps": 1e9})}),
    Family(
        "bit/s", {**_per_second(_BITS), **_named({"bps": 1.0, "kbps Kbps": 1e3, "mbps Mbps": 1e6, "gbps Gbps": 1e9})}
    ),
    Family("m", _named({"nm": 1e-9, "µm μm um": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3})),
    Family(
        "s",
        _named({
            "ns": 1e-9, "us µs μs": 1e-6, "ms msec msecs": 1e-3, "s sec secs second seconds": 1.0,
            "m min mins minute minutes": 60.0, "h hr hrs hour hours": 3600.0, "d day days": 86_400.0,
            "w wk week weeks": 604_800.0,
        }),
    ),
    Family("g", _named({"µg μg ug": 1e-6, "mg": 1e-3, "g": 1.0, "kg": 1e3, "t": 1e6})),
    Family("lb", _named({"lb lbs": 1.0, "oz": 1 / 16})),
    Family("ft", _named({"ft": 1.0, "in": 1 / 12, "yd": 3.0, "mi": 5280.0})),
    Family("l", _named({"ml mL": 1e-3, "cl cL": 1e-2, "l L": 1.0, "hl hL": 100.0})),
    Family("Hz", _prefixed("Hz", _MILLI)),
    Family("W", _prefixed("W", _MILLI)),
    Family("Wh", _prefixed("Wh", _MILLI)),
    Family("J", _prefixed("J", _MILLI)),
    Family("V", _prefixed("V", {"µ": 1e-6, **_MILLI})),
    Family("A", _prefixed("A", {"µ": 1e-6, **_MILLI})),
    Family("Pa", {**_prefixed("Pa", {"h": 100.0, **_MILLI}), "bar": 1e5, "mbar": 100.0}),
    Family("m/s", {"m/s": 1.0, "km/h": 1 / 3.6}),
    Family("", _MULTIPLES, bare=True),
    *(Family(unit, {unit: 1.0}) for unit in ("°C", "°F", "°", "psi", "mph", "dB", "dBm", "rpm", "fps", "px")),
    *(Family(unit, {unit: 1.0}) for unit in ("req/s", "ops/s", "rps", "qps", "tps", "ppm", "ppb", "lx", "pt", "x")),
]  # fmt: skip


# Everything that may stand beside a number, also nothing.
SIGNS = frozenset([_NO_SIGN, *(sign for family in _FAMILIES for sign in family.factors)])


def family_of(counts: Mapping[tuple[bool, str], int]) -> Family | None:
    """Return the family of most cells.

    Parameters
    ----------
    counts : mapping
        Number of cells by (whether the sign precedes the number, sign).
    """

    def covered(family: Family) -> int:
        return sum(
            n for (precedes, sign), n in counts.items() if sign in family.factors and (family.precedes or not precedes)
        )

    best = max(_FAMILIES, key=covered)
    return best if covered(best) else None
