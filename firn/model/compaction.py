"""Which data files of a table to rewrite together: decided the same way by the operator, which measures debt, and by the run that pays it.

Files are bin-packed within a partition. A rewrite has to be worth it: every byte should be rewritten about log(target / first size) times
in its life and not once per run, so a file joins a group only with others that are together about as large as itself (the size-tiered
rule of log-structured merge trees: O'Neil et al., 1996; Cassandra's SizeTieredCompactionStrategy).
"""
