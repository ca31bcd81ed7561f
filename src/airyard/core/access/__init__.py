"""Who may do what: people, tokens, and the one table that authorises.

Owns: roles, rights and the decision about one request. Must not know: HTTP, files, where tokens are kept.
"""
