"""A login provider: django-oauth-toolkit with people and clients for tests. Run as a program by ``oidc_provider``.

Owns: the settings of that site, and a way in for the tests (below ``/test``). The protocol is the toolkit's own: codes
with PKCE, the device flow, keys. Two things it leaves to its users are added here: an ID token at the end of the device
flow, and the address of that flow in the discovery document, as other providers have them.
"""

from __future__ import annotations

import json
import socketserver
import sys
import warnings
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from django.conf import settings

SECRET = "the secret of the server"
CLAIMS: dict[str, dict[str, Any]] = {}
"""By the name of the user; what the ID token says beside its own."""


def configure(folder: Path, port: int, pem: str) -> None:
    """Set Django up with a database in the folder."""
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="oidc_site_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.db"}},
        INSTALLED_APPS=[
            "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGIN_URL="/test/nobody",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        # The tables as they are today, in one step instead of in that of each release.
        MIGRATION_MODULES=dict.fromkeys(("auth", "contenttypes", "sessions", "oauth2_provider")),
        LOGGING={
            "version": 1,
            "handlers": {"stderr": {"class": "logging.StreamHandler"}},
            "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
        },
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": pem,
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "who", "profile": "name", "email": "address"},
            "OAUTH2_VALIDATOR_CLASS": "oidc_site_urls.Validator",
            "OIDC_SERVER_CLASS": "oidc_site_urls.Provider",
            "OAUTH_DEVICE_VERIFICATION_URI": f"http://127.0.0.1:{port}/o/device/",
            "DEVICE_FLOW_INTERVAL": 1,
        },
    )  # fmt: skip
    django.setup()


def make_parts() -> tuple[type, type]:
    """Return the validator and the provider: the toolkit's own, with claims and the device flow's ID token."""
    from oauth2_provider.oauth2_validators import OAuth2Validator
    from oauthlib.openid import Server

    class Validator(OAuth2Validator):
        oidc_claim_scope = None

        def get_additional_claims(self, request: Any) -> dict[str, Any]:
            return dict(CLAIMS.get(request.user.username, {}))

        def validate_grant_type(self, client_id: str, grant_type: str, *_: Any, **__: Any) -> bool:
            return grant_type == "authorization_code" or grant_type.endswith(":device_code")

    class Provider(Server):
        def __init__(self, *args: Any, **settings_: Any) -> None:
            super().__init__(*args, **settings_)
            grant = self.openid_connect_auth
            self.device_code_grant.create_token_response = with_id_token(self.device_code_grant, grant)

    def with_id_token(grant: Any, openid: Any) -> Any:
        plain = grant.create_token_response

        def create_token_response(request: Any, token_handler: Any) -> Any:
            headers, body, status = plain(request, token_handler)
            if status == 200:
                request.response_type = None
                token = openid.add_id_token(json.loads(body), token_handler, request)
                body = json.dumps(token)
            return headers, body, status

        return create_token_response

    return Validator, Provider


def make_urls() -> Any:
    """Return the module of addresses; it can be made only once Django is set up."""
    import types

    from django.contrib.auth import get_user_model, login
    from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
    from django.urls import include, path
    from django.views.decorators.csrf import csrf_exempt
    from oauth2_provider.settings import oauth2_settings
    from oauth2_provider.views import ConnectDiscoveryInfoView

    validator, provider = make_parts()

    def discovery(request: HttpRequest) -> HttpResponse:
        found = json.loads(ConnectDiscoveryInfoView.as_view()(request).content)
        issuer = found["issuer"]
        return JsonResponse({**found, "device_authorization_endpoint": f"{issuer}/device-authorization/"})

    def sign_in(request: HttpRequest, name: str) -> HttpResponse:
        user, _ = get_user_model().objects.get_or_create(username=name)
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
        return HttpResponseRedirect(request.GET.get("next", "/test/nobody"))

    @csrf_exempt
    def control(request: HttpRequest) -> HttpResponse:
        asked = json.loads(request.body)
        CLAIMS.update(asked.get("claims", {}))
        if "pem" in asked:
            oauth2_settings.OIDC_RSA_PRIVATE_KEY = asked["pem"]
        for name in ("ID_TOKEN_EXPIRE_SECONDS", "OIDC_ISS_ENDPOINT"):
            if name in asked:
                setattr(oauth2_settings, name, asked[name])
        return JsonResponse({})

    def nobody(request: HttpRequest) -> HttpResponse:
        return HttpResponse("nobody is signed in", status=401)

    module = types.ModuleType("oidc_site_urls")
    module.__dict__.update(
        Validator=validator,
        Provider=provider,
        urlpatterns=[
            path("o/.well-known/openid-configuration", discovery),
            path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
            path("test/sign-in/<str:name>", sign_in),
            path("test/control", control),
            path("test/nobody", nobody),
        ],
    )
    sys.modules["oidc_site_urls"] = module
    return module


def register_clients() -> None:
    """Register the server with a secret, and a client that has none."""
    from django.core.management import call_command
    from oauth2_provider.models import Application

    call_command("migrate", run_syncdb=True, verbosity=0)
    for name, kind, secret in (("airyard", "confidential", SECRET), ("public", "public", "")):
        Application.objects.get_or_create(
            client_id=name,
            defaults={
                "name": name,
                "client_type": kind,
                "client_secret": secret,
                "authorization_grant_type": "authorization-code",
                "redirect_uris": "http://127.0.0.1/callback http://127.0.0.1/login/callback",
                "skip_authorization": True,
                "algorithm": "RS256",
            },
        )


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing about good requests."""


def main() -> None:
    """Serve on the port given, until killed: ``oidc_site.py FOLDER PORT``. FOLDER holds key.pem."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    configure(folder, port, (folder / "key.pem").read_text())
    make_urls()
    register_clients()
    from django.core.wsgi import get_wsgi_application

    server = make_server("127.0.0.1", port, get_wsgi_application(), _Server, _Silent)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
