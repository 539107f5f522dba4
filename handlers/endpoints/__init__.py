"""What any app on the patterns mounts: tasks, cron, health, metrics, and who may call them."""
