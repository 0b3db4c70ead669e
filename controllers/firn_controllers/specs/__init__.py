"""Specs of users, read into typed terms and checked against columns."""
