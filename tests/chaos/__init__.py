"""Killing processes of a running engine, and checking its promises afterwards."""
