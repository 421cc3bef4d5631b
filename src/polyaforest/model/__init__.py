"""What learns, holds, scores, calibrates and explains; without scikit-learn, locks and files."""
