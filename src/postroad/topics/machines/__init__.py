"""The topics service without sockets, disks and clocks: its messages, and the machines of server, proxy and client."""
