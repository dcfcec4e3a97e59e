"""Argument checks, hints for names from other libraries, contexts around functions, and plurals. Imports only device/."""
