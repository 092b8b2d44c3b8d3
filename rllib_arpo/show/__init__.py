"""The pages of the command show: records -> layout, words, shades -> page (jinja2, templates/) -> pages."""
