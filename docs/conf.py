"""How Sphinx makes the site: `make docs`. It needs no network, and the site loads nothing from one.

Pages are Markdown: the guide (`guide/`), the reference (`reference/`) and the appendices (all pages in this folder).
`_ext/site_pages.py` writes what is made at build time: a page per method from the registry, and the list of commands
behind the numbers. `_ext/gallery.py` says which examples of the gallery run and what is shown of the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

from gallery import SETTINGS  # noqa: E402  # the folder must be known first
from irmtv import __version__  # noqa: E402

project, author = "irmtv", "the irmtv developers"
copyright = author
version = release = __version__
html_last_updated_fmt = None  # the same source gives the same pages

sphinx_gallery_conf = SETTINGS
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "site_pages",
    "gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "_templates", "gallery_last", "**/README.md"]
needs_sphinx = "8.2"
nitpicky = True
# types of other packages and types inside irmtv, which signatures name: this site has no page of them
nitpick_ignore_regex = [(r"py:.*", r"(?!irmtv\.).*"), (r"py:(class|obj|data)", r"irmtv\.\w+\.\w+.*")]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"  # "fit()" in the list beside the page, not the name of its class again
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "irmtv"
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["sphinx-version"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "**": ["sidebar-nav-bs"]}
