"""Write-audit-publish: records land on a branch of the table, and main follows after checks."""
