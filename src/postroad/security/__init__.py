"""Who may connect, and what each may do: TLS, certificates, tokens, identities and permissions.

`identities` reads the file of names and permissions, `tokens` makes and compares tokens, `tls` makes the contexts of the
standard `ssl` module, `authority` issues certificates, `gate` decides for each connection of a broker, `credentials` is the
client's side, and `http_sessions` serves pages. The core enforces the permissions (`core.protocol.rights`): it sees every path on
which a message can reach a client.
"""
