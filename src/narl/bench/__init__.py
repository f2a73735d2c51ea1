"""Experiments that can be repeated: their data, their protocol, their results and figures."""
