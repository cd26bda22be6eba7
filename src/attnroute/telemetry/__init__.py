"""Numbers read from the data plane and what follows from them."""
