"""Protection of the page: the rules of its routes, its forms, and how visitors sign in."""
