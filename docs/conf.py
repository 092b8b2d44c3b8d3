"""The documentation's site: `make docs` writes it to docs/_build/html, `make docs-links` looks its links up."""

project = "rllib_arpo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "rllib_arpo"

# Links to headings have GitHub's form, so that they lead to the same place there.
myst_heading_anchors = 4

# In docstrings, text between single backticks is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
html_show_copyright = False
