"""Commands for those who send, receive and trace messages."""
