"""Names the data files of tables from which brokers rebuild the log (`firn.model.names.HISTORY`)."""
