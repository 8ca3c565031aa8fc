"""A page that recommends in the browser: `write_page`."""

from fedgrec.export.page import Exported, write_page
from fedgrec.export.table import ItemTable

__all__ = ["Exported", "ItemTable", "write_page"]
