"""`postroad sim`: commands of the simulator."""
