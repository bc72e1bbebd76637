"""The web console: a broker serves pages that show the whole overlay, live. Needs the extra `console`.

`service` starts the HTTP server beside the broker, `app` has the routes, `access` decides who may enter, `picture` asks
all brokers how they are, `tail` streams messages that match a filter, `messages` traces and explains, `queue_actions`
acts on queues. The pages in `static/` are plain modules that a browser loads as they are.
`docs/internals/console.md` describes the design.
"""
