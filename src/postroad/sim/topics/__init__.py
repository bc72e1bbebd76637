"""The simulator of the topics service: its machines on a virtual network, disk and clock."""
