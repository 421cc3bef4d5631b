"""Detectors on clusters: `polyaforest.distributed.dask` and `polyaforest.distributed.spark`.

A cluster fits the same forest as a local `fit`, bit for bit, whatever the partitions, their order or retried tasks.
Each module requires the extra of the same name.
"""
