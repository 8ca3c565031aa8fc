"""A page that recommends in the browser: `write_page`."""

from fedgrec.pages.export.page import Exported, write_page
from fedgrec.pages.export.table import ItemTable

__all__ = ["Exported", "ItemTable", "write_page"]
