"""The pages of the command show: records -> layout, words, shades -> pages (jinja2, templates/)."""
