"""The page where one signs in. Who may is decided by `holdfast.node.access`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.node import access
from holdfast.node.dashboard.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """The page, and where its form goes."""

    async def page(request: Request) -> Response:
        context = {
            **site.context(request, "login"), "page_title": "Sign in", "next": request.query_params.get("next", ""),
            "wrong": "That token is not known." if request.query_params.get("wrong") else "",
        }  # fmt: skip
        return site.html(request, "login.html", context)

    return [
        Route("/login", page, methods=["GET"]),
        Route("/login", access.login, methods=["POST"]),
        Route("/logout", access.logout, methods=["POST"]),
    ]
