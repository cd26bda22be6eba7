"""From measured windows to the tables that the picker goes by."""
