"""Graph definitions: plain data, read from YAML or Python, checked as a whole, compiled to what the engine looks up."""
