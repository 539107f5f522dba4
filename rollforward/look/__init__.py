"""The look that all consoles share: words, style sheet, scripts, the frame of a page.

The console of the local platform and the one that an app mounts have the same pages, and neither
imports the other.

- words: times, sizes, states and bodies as people read them.
- editor: links from code to the developer's editor, for the pages of an app, too.
- pages: the templates' environment, and a page's ETag.
- templates: the frame and the macros of all pages. static: style sheet, scripts, icon.
"""
