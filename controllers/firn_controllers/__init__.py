"""The decisions: one room per kind of thing reconciled (gather, checks, plan, status), the loop, and the ports they need."""
