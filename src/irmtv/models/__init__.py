"""The families of models: linear models and networks, trees; and the search among their candidates."""
