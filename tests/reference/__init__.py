"""The paper's algorithms, slow and plain: the oracle for the kernels."""
