"""A policy over schedules: networks, how they are trained, and how they propose."""
