"""The deployment that an app's registry needs, and its differences from the files that exist.

loading          the registry of a target; nothing is opened
needs            the queues, sweeps and indexes that a registry asks for
queue_settings   a queue's limits, as queue.yaml, gcloud and the Cloud Tasks API write them
project_files    queue.yaml, cron.yaml, index.yaml, app.yaml and Dockerfile, read
checks           the findings: each says what to write
yaml_files       the text of files that are absent; writing adds, and overwrites nothing
gcloud           the commands that deploy, and what gcloud says of a project
"""
