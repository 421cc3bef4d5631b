"""Judge tables and streams: score, explain and learn rows, each with the model of its key."""

from polyaforest.judge.models import open_store, read_model
from polyaforest.storage.model_store import read_damaged, read_notes

__all__ = ["open_store", "read_damaged", "read_model", "read_notes"]
