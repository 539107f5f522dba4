"""Quality of the detection: scores by labels, baselines, cross-validation, published scores."""
