"""Models in formats that other programs score with: JSON, SQL and ONNX."""

from polyaforest.export.document import Exported, document
from polyaforest.export.formats import FORMATS, write

__all__ = ["FORMATS", "Exported", "document", "write"]
