"""Makes the HTML pages of `rllib-arpo show`: `drawing` and `words` prepare a record, `pages` fills the templates."""
