"""Main of a table follows the branch on which rows land, after checks of the rows that it lacks."""
