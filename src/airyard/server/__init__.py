"""The ASGI shell: routes, authentication, composition root."""
