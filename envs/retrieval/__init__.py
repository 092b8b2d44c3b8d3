"""What the search tool searches: a lexical index of passages, the web, results known from before."""
