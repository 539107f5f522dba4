"""The work of an app that runs: on the local platform, or deployed with a console.

http        requests that follow no redirect and keep the token to itself
options     those that commands share: the app, pages, verbs
remote_app  the app and the platform that the options name
tables      rows for people, without control characters
"""
