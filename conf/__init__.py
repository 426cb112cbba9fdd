"""Typed configuration of the commands: `schema` says which keys there are, the YAML files choose values."""
