"""Built-in step types. Their way to the outside is `egress`, the only door that a request of Weft leaves by."""
