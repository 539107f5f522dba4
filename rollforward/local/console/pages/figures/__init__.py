"""Pages of figures: latency, workers at work, limits, and costs."""
