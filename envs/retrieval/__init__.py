"""What the search tool searches: a lexical index of passages, search engines on the web, results known from before."""
