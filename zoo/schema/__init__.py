"""The JSON Schemas of specs and of recipes, for editors: `zoo schema`."""
