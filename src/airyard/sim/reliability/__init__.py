"""How reliable a long run is on a fleet that breaks: months in seconds, nodes judged by the production rules."""
