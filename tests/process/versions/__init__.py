"""Two versions of a shop, side by side on one store, as a deployment and a rollback have them.

first_shop.py is the tutorial's shop with a batch and a pull queue. second_shop.py is its next
version, in which much has changed; its docstring says what.
"""
