"""The detectors in other libraries' words: `polyaforest.adapters.river` and `polyaforest.adapters.pyod`."""
