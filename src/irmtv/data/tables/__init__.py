"""Raw tables (DataFrames of numbers, text, dates, gaps): their columns, and the numbers made of them."""
