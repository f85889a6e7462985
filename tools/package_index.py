"""The index of packages that pip is configured with: the files of a package, and what its project page says.

pip's own modules do the work, so that its configuration holds here as well: the address, certificates, a proxy and
passwords. They are internal to pip, and may move in a later version; pip 23.2.1 was used.
"""

from typing import Any

from check_installed import plain


class PackageIndex:
    """One index, the one of pip's option ``--index-url``. Additional indexes and folders are not asked."""

    def __init__(self) -> None:
        from pip._internal.commands import create_command  # noqa: PLC0415 - slow, and the tests need no index
        from pip._internal.index.collector import LinkCollector, parse_links  # noqa: PLC0415
        from pip._internal.models.link import Link  # noqa: PLC0415

        command: Any = create_command("install")
        options, _ = command.parse_args([])
        self.address = options.index_url.rstrip("/")
        self.session = command._build_session(options)
        collector = LinkCollector.create(self.session, options=options)
        self.page = lambda name: collector.fetch_response(Link(f"{self.address}/{plain(name)}/"))
        self.links = parse_links

    def files(self, name: str) -> list[tuple[str, str | None]]:
        """Every file of a package, and its sha256 if the index names it."""
        page = self.page(name)
        if page is None:
            raise SystemExit(f"The index of packages has no list of files for {name}, or it could not be reached.")
        return [(link.filename, link.hash if link.hash_name == "sha256" else None) for link in self.links(page)]

    def project(self, name: str) -> dict[str, Any] | None:
        """The project page as JSON, which names the newest version and its advisories; None if there is none."""
        address = f"{self.address.removesuffix('/simple')}/pypi/{plain(name)}/json"
        try:
            answer = self.session.get(address, headers={"Cache-Control": "max-age=0"})
            page = answer.json() if answer.status_code == 200 else None
        except (OSError, ValueError):
            return None
        return page if isinstance(page, dict) else None
