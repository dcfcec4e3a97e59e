"""Checks of arguments, answers to other libraries' names, contexts around functions, and plurals. It imports only device/."""
