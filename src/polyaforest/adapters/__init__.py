"""The detectors in other libraries' words: `polyaforest.adapters.river` and `polyaforest.adapters.pyod`.

Each needs its library, which comes with the extra of the same name; importing this package needs neither.
"""
