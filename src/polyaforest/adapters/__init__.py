"""Detectors with the interfaces of other libraries: `polyaforest.adapters.river` and `polyaforest.adapters.pyod`.

Each requires the extra of the same name; importing this package requires neither.
"""
