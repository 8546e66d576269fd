"""Links of the built site: each leads to a file of it, and to a place in that file."""

from html.parser import HTMLParser
import os
from urllib.parse import unquote, urlsplit

# What a browser fetches or follows.
LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}
# Pages of mdBook's own, with paths that hold for a site at the root of a server.
GENERATED = {"404.html"}


class Page(HTMLParser):
    """The links of a page and the places in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places, self.pictures = [], set(), []
        with open(path, encoding="utf-8") as f:
            self.feed(f.read())

    def handle_starttag(self, tag, attrs):
        """Takes what matters of each element."""
        found = dict(attrs)
        for name in ("id", "name"):
            if found.get(name):
                self.places.add(found[name])
        if tag in LINKS and found.get(LINKS[tag]):
            self.links.append(found[LINKS[tag]])
        if tag == "img":
            self.pictures.append(found)


def load(site):
    """All pages, by their paths."""
    paths = [os.path.join(top, name) for top, _, names in os.walk(site) for name in names
             if name.endswith(".html") and name not in GENERATED]
    return {path: Page(path) for path in sorted(paths)}


def broken(site, pages):
    """What leads nowhere, or away from the site by a relative path."""
    for path, page in pages.items():
        where = os.path.relpath(path, site)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("https", "mailto"):
                    yield f"{where}: {link}: neither a page of the site nor https"
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path)))
            target = path if not parts.path else target
            if os.path.isdir(target):
                target = os.path.join(target, "index.html")
            if os.path.commonpath([os.path.abspath(site), os.path.abspath(target)]) != \
                    os.path.abspath(site) or not os.path.isfile(target):
                yield f"{where}: {link}: no such file in the site"
            elif parts.fragment and target.endswith(".html") and \
                    unquote(parts.fragment) not in pages[target].places:
                yield f"{where}: {link}: no such place in that page"


def unnamed(site, pages):
    """Pictures that say nothing to who can't see them."""
    for path, page in pages.items():
        for picture in page.pictures:
            if not picture.get("alt"):
                yield f"{os.path.relpath(path, site)}: {picture.get('src')} has no text"
