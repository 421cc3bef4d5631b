"""`polyaforest watch`: read records, score them, write the results, and commit."""
