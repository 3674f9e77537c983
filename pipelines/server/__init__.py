"""Servers of Prefect on this machine: for the length of a flow, and for the dashboards."""
