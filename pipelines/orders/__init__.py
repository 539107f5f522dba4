"""Orders: a flow for each, whose steps happen once, wait for a courier, or are undone.

Pattern: flows of named steps.
Seeds: H. Garcia-Molina and K. Salem, "Sagas", 1987; the Pipeline API of App Engine, 2010.
"""
