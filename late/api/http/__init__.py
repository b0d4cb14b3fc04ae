"""The interface over HTTP: routes, the server, the OpenAPI document."""
