"""Figures and tables of "Low-overhead message tracking for distributed messaging"."""
