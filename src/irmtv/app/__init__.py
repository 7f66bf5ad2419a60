"""The application: from a table to an answer. It uses the public methods of the library alone."""
