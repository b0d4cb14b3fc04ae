"""Bills as clouds deliver them: files, formats and the columns of each, read as rows of FOCUS."""
