"""What scorers see of measured traffic; serving and training use the same code."""
