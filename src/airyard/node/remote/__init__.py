"""Other machines, reached by SSH: looked at, given this very version of Airyard, and brought into the fleet."""
