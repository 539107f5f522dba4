"""The deployment that an app's registry needs: queues, the sweep, indexes and gcloud's lines.

needs            what the registry asks for
queue_settings   a queue's limits, as queue.yaml, gcloud and the Cloud Tasks API write them
"""
