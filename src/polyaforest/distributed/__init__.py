"""Forests from clusters: adapters for engines that hold tables in parts.

What a cluster fits is the forest of a local `fit`, bit for bit, whatever the partitions, their order, or the tasks that
died on the way. `polyaforest.distributed.dask` and `polyaforest.distributed.spark` need the extras of that name.
"""
