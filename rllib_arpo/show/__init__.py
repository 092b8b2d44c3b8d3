"""The pages of the command show: records -> drawing, words -> pages (jinja2, templates/)."""
