"""Methods that read a fitted forest, with arguments."""

READERS = {
    "score_samples": {},
    "decision_function": {},
    "predict": {},
    "mass": {},
    "tree_masses": {},
    "log_density": {},
    "leaves": {},
    "epsilon_level": {"phi": 0.5},
    "credible_interval": {"level": 0.5},
}
